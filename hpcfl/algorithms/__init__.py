"""Federated algorithms, one file each; the keys of ``ALGORITHMS`` are their names in a job."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcfl.algorithms.base import Algorithm

_CLASSES = {
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
}
"""By the name of an algorithm, which is that of its file, the name of its class."""


class _Algorithms(Mapping[str, "type[Algorithm]"]):
    """The classes by name.  A file is imported when its class is asked for: a run needs one."""

    def __getitem__(self, name: str) -> "type[Algorithm]":
        attribute = _CLASSES[name]
        found: type[Algorithm] = getattr(import_module(f"{__name__}.{name}"), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


ALGORITHMS: Mapping[str, "type[Algorithm]"] = _Algorithms()
