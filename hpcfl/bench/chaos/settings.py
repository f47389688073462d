"""Define the job of the runs, and draw settings for each attempt that must not change a bit."""

import json
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

ROUNDS = 24
KEEP = 2
JOB = {
    "data": {"kind": "quadratics", "clients": 9, "dim": 3000, "spread": 0.5},
    "model": {"name": "point"},
    "cohort": {"kind": "bernoulli", "p": 0.4},
    "local": {"steps": 2, "batch_size": "full", "lr": 0.1},
    "rounds": ROUNDS,
    "device": "cpu",
}
STORES: dict[str, dict[str, Any]] = {
    "cached": {},
    "uncached": {"cache_gib": 0.0},
    "scratch disk": {"cache_gib": 0.0, "dir": "scratch"},
}


class Setting(NamedTuple):
    """Settings of the store of client states and of the checkpoints."""

    name: str
    """Of the store: a key of STORES."""
    tree: dict[str, dict[str, Any]]
    """The sections of the job."""

    @property
    def overrides(self) -> list[str]:
        """The same settings as overrides on the command line."""
        return [
            f"{section}.{key}={json.dumps(value)}"
            for section, values in self.tree.items()
            for key, value in values.items()
        ]


def draw_setting(draw: Random, root: Path) -> Setting:
    """Draw a setting; a folder under ``root`` stands for a disk of the node."""
    name = draw.choice(list(STORES))
    store: dict[str, Any] = {"kind": "hdf5", "cache_gib": 1.0, "dir": None} | STORES[name]
    if store["dir"]:
        store["dir"] = str(root.absolute() / store["dir"])
    # So few minutes make a checkpoint due after every round or two, at rounds that vary.
    minutes = draw.choice([None, None, 0.001])
    checkpoint = {"every": draw.choice([2, 3]), "minutes": minutes, "keep": KEEP}
    return Setting(name, {"store": store, "checkpoint": checkpoint})
