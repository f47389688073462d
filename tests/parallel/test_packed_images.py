"""Photographs that stay in their file: the same bits on any number of ranks, waiting is logged."""

import json
from math import isfinite

import pytest

from hpcfl.data.sources.image_folder import ImageFolder
from tests.image_layouts import image
from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

JOB = {
    "model": {"name": "linear"},
    "cohort": {"kind": "uniform", "size": 4},
    "local": {"epochs": 2, "batch_size": 4, "lr": 0.01},
    "rounds": 2,
    "evaluate": {"every": 1, "clients": True},
    "seed": 5,
    "device": "cpu",
}
JOBS = {
    "fedavg": {**JOB, "algorithm": {"name": "fedavg"}},
    "fedhbm": {**JOB, "algorithm": {"name": "fedhbm"}, "rounds": 4},
    "mime": {**JOB, "algorithm": {"name": "mime"}},
    "one-thread": {**JOB, "algorithm": {"name": "fedavg"}},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six clients of 3 to 38 images."""
    root = tmp_path_factory.mktemp("photos")
    for client in range(6):
        for number in range(3 + 7 * client):
            label = (client + number) % 3
            name = f"{client}{number:02}.jpg"
            image(root / f"train/{client}/{label}/{name}", 9 * client + number, (40, 30))
    for number in range(30):
        image(root / f"test/{number % 3}/{number:02}.jpg", number, (30, 36))
    config = ImageFolder(root=str(root), size=16, margin=4, workers=1)
    config.prepare(lambda items, what, total=None: items)
    return root


@pytest.fixture(scope="module")
def play(photos, tmp_path_factory):
    def go(ranks):
        root = tmp_path_factory.mktemp(f"on{ranks}")
        data = {"kind": "image_folder", "root": str(photos), "size": 16, "margin": 4}
        jobs = {
            name: {**job, "data": {**data, "workers": 1 if name == "one-thread" else 3}}
            for name, job in JOBS.items()
        }
        play_all(root, jobs, ranks, mpi=False)
        return root

    return go


@pytest.fixture(scope="module")
def alone(play):
    return play(1)


def test_on_two_ranks(alone, play):
    many = play(2)
    for name, job in JOBS.items():
        found = outcome(many / name)
        assert found == outcome(alone / name), name
        assert found.round == job["rounds"]
        assert all(isfinite(line["test_loss"]) for line in found.log)


def test_the_number_of_threads_does_not_show(alone):
    assert outcome(alone / "one-thread") == outcome(alone / "fedavg")


def test_waiting_for_data_is_logged(alone):
    log = (alone / "fedavg" / "log.jsonl").read_text().splitlines()
    for line in map(json.loads, log[1:]):
        assert 0 < line["data_s"] < line["wall_s"]
