"""The sweeps of all methods on CIFAR-10 have every method."""

from pathlib import Path

import pytest

from hpcfl.algorithms import ALGORITHMS
from hpcfl.sweep.grid import read_sweep

FOLDER = Path(__file__).parents[2] / "examples/all_methods"
SWEEPS = ["sweep.yaml", "sweep_adaptive.yaml", "sweep_personal.yaml"]
POOLED = "centralized"  # one client has all data


@pytest.fixture
def points(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return {name: read_sweep(FOLDER / name).points for name in SWEEPS}


def test_every_method_is_compared(points):
    found = {
        point.loaded.tree["algorithm"]["name"] for of_sweep in points.values() for point in of_sweep
    }
    assert found == set(ALGORITHMS) - {POOLED}
