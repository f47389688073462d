"""Federated algorithms, one file each; the keys of ``ALGORITHMS`` are their names in a job."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpcfl.io.lazy_classes import LazyClasses

if TYPE_CHECKING:
    from hpcfl.algorithms.base import Algorithm

ALGORITHMS: Mapping[str, "type[Algorithm]"] = LazyClasses(
    __name__,
    {
        "adabest": "AdaBest",
        "centralized": "Centralized",
        "ditto": "Ditto",
        "dpfedavg": "DPFedAvg",
        "ef21": "EF21",
        "fedacg": "FedACG",
        "fedadagrad": "FedAdagrad",
        "fedadam": "FedAdam",
        "fedadamw": "FedAdamW",
        "fedadc": "FedADC",
        "fedavg": "FedAvg",
        "fedavgm": "FedAvgM",
        "fedbn": "FedBN",
        "fedcm": "FedCM",
        "feddyn": "FedDyn",
        "fedexp": "FedExP",
        "fedgamma": "FedGAMMA",
        "fedhbm": "FedHBM",
        "fedinit": "FedInit",
        "fedlada": "FedLADA",
        "fedlc": "FedLC",
        "fedlesam": "FedLESAM",
        "fedlesam_d": "FedLESAMD",
        "fedlesam_s": "FedLESAMS",
        "fedmim": "FedMIM",
        "fedmoswa": "FedMoSWA",
        "fedmuon": "FedMuon",
        "fednova": "FedNova",
        "fedntd": "FedNTD",
        "fedper": "FedPer",
        "fedprox": "FedProx",
        "fedrep": "FedRep",
        "fedsam": "FedSAM",
        "fedsmoo": "FedSMOO",
        "fedspeed": "FedSpeed",
        "fedswa": "FedSWA",
        "fedvarp": "FedVARP",
        "fedyogi": "FedYogi",
        "ghb": "GHB",
        "localghb": "LocalGHB",
        "mime": "Mime",
        "mimeadam": "MimeAdam",
        "mimelite": "MimeLite",
        "mimeliteadam": "MimeLiteAdam",
        "mimelitemom": "MimeLiteMom",
        "mimemom": "MimeMom",
        "mimemvr": "MimeMVR",
        "mofedsam": "MoFedSAM",
        "moon": "Moon",
        "qsgd": "QSGD",
        "randk": "RandK",
        "scaffold": "Scaffold",
        "server_only": "ServerOnly",
        "topk": "TopK",
    },
)
