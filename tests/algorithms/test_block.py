"""Many clients at once are one client after the other, up to rounding, for every algorithm."""

import re
from itertools import permutations

import numpy as np
import pytest
import torch

from hpcfl.errors import JobError
from hpcfl.job import load
from hpcfl.rundir import RunDir
from hpcfl.session import start
from tests.algorithms.play import parts, play, read, softmax_problem, tree
from tests.algorithms.trace import trace
from tests.algorithms.zoo import ALL

# Six clients of 1 to 12 examples: 2 to 6 steps each, batches that are not full, blocks of 4 with
# two places empty, and a client that stands still for most of the time.
SETTINGS = {
    "local": {"epochs": 2, "batch_size": 4, "lr": 0.3, "weight_decay": 0.05, "clip": 0.7},
    "cohort": {"kind": "replay", "rounds": [[0, 1, 2, 3, 4, 5], [5, 1], [], [2, 0, 3]]},
    "rounds": 4,
}
POOLED = SETTINGS | {"cohort": {"kind": "cyclic", "size": 1}}


@pytest.mark.parametrize("name", ALL)
def test_every_algorithm(name, tmp_path):
    settings = POOLED if name == "centralized" else SETTINGS
    job = tree(tmp_path, softmax_problem(), ALL[name], **settings)
    one, many = (trace({**job, **how}) for how in ({}, {"executor": "block", "block_size": 4}))
    np.testing.assert_allclose(many.xs, one.xs, rtol=0, atol=1e-12)
    for before, after in zip(one.states, many.states, strict=True):
        for a, b in zip(before, after, strict=True):
            assert (a is None) == (b is None)
            for x, y in zip(a or (), b or (), strict=True):
                np.testing.assert_allclose(y, x, rtol=0, atol=1e-12)


@pytest.fixture
def train(tmp_path):
    """Trains clients of round 0 in float32, four at a time; what each of them sends."""
    softmax = tree(tmp_path, softmax_problem(), {"name": "scaffold"}, **SETTINGS)
    job = {**softmax, "precision": "float32", "executor": "block", "block_size": 4}
    made = parts(tmp_path, job)
    executor = made.executor(made.gradient())
    message = made.algorithm.broadcast(made.algorithm.init_server(made.x0))

    def go(clients):
        visits = [made.population.visit(client, 0) for client in clients]
        trained = executor.train(message, visits, [made.first(i) for i in clients])
        return dict(zip(clients, trained, strict=True))

    return go


def test_a_clients_bits_do_not_depend_on_its_company(train):
    alone = {client: train([client])[client] for client in range(6)}
    for clients in [*permutations(range(3)), (5, 4, 3, 2, 1, 0), (3, 1, 4)]:
        for client, trained in train(clients).items():
            assert torch.equal(trained.upload.delta, alone[client].upload.delta)
            assert torch.equal(trained.state.c, alone[client].state.c)
            assert torch.equal(trained.loss, alone[client].loss)


def test_a_state_keeps_nothing_but_itself(train):
    """What a store holds of one client is not a view of the whole block."""
    for trained in train(range(3)).values():
        assert trained.state.c.untyped_storage().nbytes() == trained.state.c.nbytes


def test_the_job_says_what_does_not_go_together(tmp_path):
    job = tree(tmp_path, softmax_problem(), {"name": "fedavg"}, block_size=4)
    with pytest.raises(JobError, match="block_size: found with executor sequential"):
        read(tmp_path, job)


@pytest.mark.parametrize("name", ["fedavg", "mime", "fedhbm"])
def test_auto_takes_the_faster_one_and_keeps_it(tmp_path, name):
    job = tree(tmp_path, softmax_problem(), {"name": name}, rounds=2, executor="auto")
    run = play(tmp_path, job)
    chosen = load(run.path / "job.yaml").job
    (told,) = [line for line in RunDir(run.path).last_start["told"] if "executor" in line]
    alone, many = map(float, re.findall(r"([\d.e-]+) ms", told))
    assert chosen.executor == ("block" if many < alone else "sequential")
    assert chosen.block_size == (6 if many < alone else None)
    assert told.startswith(f"executor: {chosen.executor} (a step of a client: ")
    later = start(read(tmp_path, {**job, "rounds": 3}), run.path, continued=True)
    assert later.rounds == 3
    assert load(run.path / "job.yaml").job.executor == chosen.executor
