"""ALL: a small configuration of every registered algorithm, by a name for test ids."""

from collections.abc import Mapping
from typing import Any

ALL: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedavg-server_lr": {"name": "fedavg", "server_lr": 0.7},
    "scaffold-1": {"name": "scaffold", "option": 1},
    "scaffold-2": {"name": "scaffold", "option": 2, "server_lr": 0.7},
    "fedhbm-zero": {"name": "fedhbm", "first": "zero"},
    "fedhbm-shared": {"name": "fedhbm", "first": "shared", "server_lr": 0.7},
    "fedhbm-random": {"name": "fedhbm", "first": "random", "beta": 0.5},
    "fedhbm-zero-nesterov": {"name": "fedhbm", "first": "zero", "nesterov": True},
    "fedhbm-shared-nesterov": {"name": "fedhbm", "first": "shared", "nesterov": True},
    "fedhbm-random-nesterov": {"name": "fedhbm", "first": "random", "nesterov": True},
}
