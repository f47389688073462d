"""Federated algorithms, one file each; the keys of ``ALGORITHMS`` are their names in a job."""

from collections.abc import Mapping
from types import MappingProxyType

from hpcfl.algorithms.adabest import AdaBest
from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.centralized import Centralized
from hpcfl.algorithms.ditto import Ditto
from hpcfl.algorithms.dpfedavg import DPFedAvg
from hpcfl.algorithms.ef21 import EF21
from hpcfl.algorithms.fedacg import FedACG
from hpcfl.algorithms.fedadagrad import FedAdagrad
from hpcfl.algorithms.fedadam import FedAdam
from hpcfl.algorithms.fedadamw import FedAdamW
from hpcfl.algorithms.fedadc import FedADC
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.fedavgm import FedAvgM
from hpcfl.algorithms.fedbn import FedBN
from hpcfl.algorithms.fedcm import FedCM
from hpcfl.algorithms.feddyn import FedDyn
from hpcfl.algorithms.fedexp import FedExP
from hpcfl.algorithms.fedgamma import FedGAMMA
from hpcfl.algorithms.fedhbm import FedHBM
from hpcfl.algorithms.fedinit import FedInit
from hpcfl.algorithms.fedlada import FedLADA
from hpcfl.algorithms.fedlc import FedLC
from hpcfl.algorithms.fedlesam import FedLESAM
from hpcfl.algorithms.fedlesam_d import FedLESAMD
from hpcfl.algorithms.fedlesam_s import FedLESAMS
from hpcfl.algorithms.fedmim import FedMIM
from hpcfl.algorithms.fedmoswa import FedMoSWA
from hpcfl.algorithms.fedmuon import FedMuon
from hpcfl.algorithms.fednova import FedNova
from hpcfl.algorithms.fedntd import FedNTD
from hpcfl.algorithms.fedper import FedPer
from hpcfl.algorithms.fedprox import FedProx
from hpcfl.algorithms.fedrep import FedRep
from hpcfl.algorithms.fedsam import FedSAM
from hpcfl.algorithms.fedsmoo import FedSMOO
from hpcfl.algorithms.fedspeed import FedSpeed
from hpcfl.algorithms.fedswa import FedSWA
from hpcfl.algorithms.fedvarp import FedVARP
from hpcfl.algorithms.fedyogi import FedYogi
from hpcfl.algorithms.ghb import GHB
from hpcfl.algorithms.localghb import LocalGHB
from hpcfl.algorithms.mime import Mime
from hpcfl.algorithms.mimeadam import MimeAdam
from hpcfl.algorithms.mimelite import MimeLite
from hpcfl.algorithms.mimeliteadam import MimeLiteAdam
from hpcfl.algorithms.mimelitemom import MimeLiteMom
from hpcfl.algorithms.mimemom import MimeMom
from hpcfl.algorithms.mimemvr import MimeMVR
from hpcfl.algorithms.mofedsam import MoFedSAM
from hpcfl.algorithms.moon import Moon
from hpcfl.algorithms.qsgd import QSGD
from hpcfl.algorithms.randk import RandK
from hpcfl.algorithms.scaffold import Scaffold
from hpcfl.algorithms.server_only import ServerOnly
from hpcfl.algorithms.topk import TopK

ALGORITHMS: Mapping[str, type[Algorithm]] = MappingProxyType(
    {
        "adabest": AdaBest,
        "centralized": Centralized,
        "ditto": Ditto,
        "dpfedavg": DPFedAvg,
        "ef21": EF21,
        "fedacg": FedACG,
        "fedadagrad": FedAdagrad,
        "fedadam": FedAdam,
        "fedadamw": FedAdamW,
        "fedadc": FedADC,
        "fedavg": FedAvg,
        "fedavgm": FedAvgM,
        "fedbn": FedBN,
        "fedcm": FedCM,
        "feddyn": FedDyn,
        "fedexp": FedExP,
        "fedgamma": FedGAMMA,
        "fedhbm": FedHBM,
        "fedinit": FedInit,
        "fedlada": FedLADA,
        "fedlc": FedLC,
        "fedlesam": FedLESAM,
        "fedlesam_d": FedLESAMD,
        "fedlesam_s": FedLESAMS,
        "fedmim": FedMIM,
        "fedmoswa": FedMoSWA,
        "fedmuon": FedMuon,
        "fednova": FedNova,
        "fedntd": FedNTD,
        "fedper": FedPer,
        "fedprox": FedProx,
        "fedrep": FedRep,
        "fedsam": FedSAM,
        "fedsmoo": FedSMOO,
        "fedspeed": FedSpeed,
        "fedswa": FedSWA,
        "fedvarp": FedVARP,
        "fedyogi": FedYogi,
        "ghb": GHB,
        "localghb": LocalGHB,
        "mime": Mime,
        "mimeadam": MimeAdam,
        "mimelite": MimeLite,
        "mimeliteadam": MimeLiteAdam,
        "mimelitemom": MimeLiteMom,
        "mimemom": MimeMom,
        "mimemvr": MimeMVR,
        "mofedsam": MoFedSAM,
        "moon": Moon,
        "qsgd": QSGD,
        "randk": RandK,
        "scaffold": Scaffold,
        "server_only": ServerOnly,
        "topk": TopK,
    }
)
