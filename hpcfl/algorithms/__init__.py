"""Federated algorithms, one file each; a job names them by the keys of ``ALGORITHMS``."""

from collections.abc import Mapping
from types import MappingProxyType

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.fedhbm import FedHBM
from hpcfl.algorithms.scaffold import Scaffold

ALGORITHMS: Mapping[str, type[Algorithm]] = MappingProxyType(
    {
        "fedavg": FedAvg,
        "fedhbm": FedHBM,
        "scaffold": Scaffold,
    }
)
