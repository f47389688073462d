"""Many clients at once are one client after the other, up to rounding, for every algorithm."""

from dataclasses import dataclass
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

import hpcfl
from hpcfl.algorithms.base import Upload
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.comm.solo import Solo
from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.models.base import ModelConfig
from hpcfl.runs.layout import RunDir
from hpcfl.start.components import choose_executor
from hpcfl.start.components.executors import make_executor
from tests.algorithms.facts import COHORT
from tests.algorithms.methods import ALL, ALLOW_MOMENTUM, ALLOW_NESTEROV, SAMPLE
from tests.algorithms.play import Problem, parts, play, read, softmax_problem, tree
from tests.algorithms.trace import trace

# Six clients of 1 to 12 examples: 2 to 6 steps each, batches that are not full, blocks of 4 with
# two places empty, and a client that stands still for most of the time.
SETTINGS = {
    "local": {"epochs": 2, "batch_size": 4, "lr": 0.3, "weight_decay": 0.05, "clip": 0.7},
    "cohort": {"kind": "replay", "rounds": [[0, 1, 2, 3, 4, 5], [5, 1], [], [2, 0, 3]]},
    "rounds": 4,
}
POOLED = SETTINGS | {"cohort": {"kind": "cyclic", "size": 1}}


@pytest.mark.parametrize("name", SAMPLE)
def test_every_algorithm(name, tmp_path):
    settings = POOLED if name == "centralized" else SETTINGS
    check_block(tmp_path, name, settings, 1 if name == "centralized" else 4)


@pytest.mark.parametrize(
    ("name", "nesterov"),
    [*((name, False) for name in ALLOW_MOMENTUM), *((name, True) for name in ALLOW_NESTEROV)],
)
def test_local_momentum(name, nesterov, tmp_path):
    local = {**SETTINGS["local"], "momentum": 0.8, "nesterov": nesterov}
    check_block(tmp_path, name, {**SETTINGS, "local": local}, 4)


def check_block(folder, name, settings, size):
    """Play with both executors, and compare the models and client states of every round."""
    if ALL[name]["name"] == "streaming_diloco":
        settings = {**settings, "cohort": {"kind": "cyclic", "size": 6}}
    job = tree(folder, softmax_problem(), ALL[name], **settings)
    one, many = (trace({**job, **how}) for how in ({}, {"executor": "block", "block_size": size}))
    np.testing.assert_allclose(many.xs, one.xs, rtol=0, atol=1e-12)
    for before, after in zip(one.states, many.states, strict=True):
        for a, b in zip(before, after, strict=True):
            assert (a is None) == (b is None)
            for x, y in zip(a or (), b or (), strict=True):
                np.testing.assert_allclose(y, x, rtol=0, atol=1e-12)


@dataclass(frozen=True, kw_only=True)
class Dropping(ModelConfig):
    """A small model that drops twice."""

    p: float = 0.4

    def build(self, input_shape, outputs):
        first, last = nn.Linear(input_shape[0], 5), nn.Linear(5, outputs)
        return nn.Sequential(first, nn.Dropout(self.p), nn.Tanh(), nn.Dropout(self.p / 2), last)


def test_dropout_is_each_client_s_own_in_every_step(tmp_path):
    model = {"name": "tests.algorithms.test_block.Dropping"}
    job = tree(tmp_path, softmax_problem(), {"name": "fedavg"}, model=model, **SETTINGS)
    block = {"executor": "block", "block_size": 4}
    one, many, plain = (
        play(tmp_path, {**job, **how}).x for how in ({}, block, {"model": {**model, "p": 0.0}})
    )
    np.testing.assert_allclose(many, one, rtol=0, atol=1e-12)
    assert not np.allclose(one, plain)


@pytest.fixture
def train(tmp_path):
    """Trains clients of round 0 in float32, four at a time; what each of them sends."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(6), (3, 33, 20, 7, 40, 1))
    problem = Problem(draw.normal(size=(104, 54)), np.arange(104) % 7, client)
    softmax = tree(tmp_path, problem, {"name": "scaffold"}, **SETTINGS)
    job = {
        **softmax,
        "local": {"epochs": 2, "batch_size": 33, "lr": 0.3, "clip": 0.7},
        "precision": "float32",
        "executor": "block",
        "block_size": 4,
    }
    made = parts(tmp_path, job)
    executor = make_executor(made, made.gradient())
    message = made.training.algorithm.broadcast(
        made.training.algorithm.init_server(made.model.x0), COHORT
    )

    def go(clients):
        tasks = [made.population.clients.task(client, 0) for client in clients]
        trained = executor.train(message, tasks, [made.first_state(i) for i in clients])
        return dict(zip(clients, trained, strict=True))

    return go


def test_a_clients_bits_do_not_depend_on_its_company(train):
    """Sizes that no vector of a processor divides: 54 features, 7 classes, batches of 33."""
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


AUTO_JOB = {"rounds": 2, "executor": "auto", "cohort": {"kind": "uniform", "size": 20}}


def test_auto_follows_a_rule_and_writes_it_into_the_job(tmp_path):
    problem = softmax_problem(sizes=20 * [2])
    run = play(tmp_path, tree(tmp_path, problem, {"name": "fedhbm"}, **AUTO_JOB))
    assert load(run.directory / "job.yaml").job.executor == "block"
    (told,) = [line for line in RunDir(run.directory).last_start["notes"] if "executor" in line]
    assert told == "executor: block (auto: on a CPU, with a small model of dense layers)"
    again = hpcfl.run(run.directory / "job.yaml", out=tmp_path / "again")
    assert torch.equal(again.x, run.x)


@pytest.mark.parametrize(
    ("cohort", "asked", "size"),
    [(32, None, None), (33, None, 17), (50, None, 25), (64, None, 32), (65, None, 22), (65, 3, 3)],
)
def test_a_cohort_is_divided_into_equal_blocks(tmp_path, cohort, asked, size):
    job = tree(
        tmp_path,
        softmax_problem(sizes=65 * [2]),
        {"name": "fedavg"},
        cohort={"kind": "uniform", "size": cohort},
        executor="block",
        block_size=asked,
    )
    assert choose_executor.with_equal_blocks(parts(tmp_path, job))[0].job.block_size == size
    alone = parts(tmp_path, {**job, "executor": "sequential", "block_size": None})
    assert choose_executor.with_equal_blocks(alone)[0] is alone


def test_auto_looks_at_the_blocks_that_it_would_make(tmp_path):
    """Of 33 clients two blocks, of 17 at most: too few."""
    job = {**AUTO_JOB, "rounds": 1, "cohort": {"kind": "uniform", "size": 33}}
    run = play(tmp_path, tree(tmp_path, softmax_problem(sizes=33 * [2]), {"name": "fedavg"}, **job))
    assert load(run.directory / "job.yaml").job.executor == "sequential"


CONVOLUTION = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(10, 10))


@pytest.mark.parametrize(
    ("device", "precision", "model", "cohort", "executors"),
    [
        ("cpu", "float32", nn.Linear(10, 10), 15, ("block",)),
        ("cpu", "float32", nn.Linear(10, 10), 14, ()),
        ("cpu", "float32", nn.Linear(299, 100), 32, ("block",)),  # 30 000 parameters
        ("cpu", "float32", nn.Linear(300, 100), 32, ()),
        ("cpu", "float32", CONVOLUTION, 32, ()),
        ("cpu", "float32", nn.LSTM(4, 4), 32, ()),
        ("cuda", "float32", CONVOLUTION, 1, ("triton", "lanes")),
        ("cuda", "bf16", nn.LSTM(4, 4), 32, ("lanes",)),
        ("cuda", "tf32", nn.LSTM(4, 4), 32, ("triton", "lanes")),
        ("cuda", "tf32", nn.LSTM(4, 129), 32, ("lanes",)),
    ],
)
def test_the_rule_needs_no_clock(monkeypatch, device, precision, model, cohort, executors):
    x0 = parameters_to_vector(model.parameters())
    found = SimpleNamespace(device=torch.device(device), module=model, x0=x0)
    monkeypatch.setattr(choose_executor, "find_spec", lambda _: "found")
    assert choose_executor.rule(found, precision, cohort)[0] == executors
    if device == "cuda":
        # There are at most 32 lanes.
        assert choose_executor.rule(found, precision, 33)[0] == executors[:-1]
        monkeypatch.setattr(choose_executor, "find_spec", lambda _: None)
        assert choose_executor.rule(found, precision, cohort)[0] == ("lanes",)


@pytest.mark.parametrize(
    ("layer", "cohort", "executors"),
    [
        (nn.Linear(49, 100), 20, ("block",)),  # 5 000 parameters
        (nn.Linear(49, 100), 19, ()),
        (nn.Linear(50, 100), 32, ()),
    ],
)
def test_the_rule_where_one_client_needs_no_graph(layer, cohort, executors):
    x0 = parameters_to_vector(layer.parameters())
    found = SimpleNamespace(device=torch.device("cpu"), module=layer, x0=x0)
    assert choose_executor.rule(found, "float32", cohort, is_chain=True)[0] == executors


def test_ranks_that_choose_differently_are_refused():
    class Ranks(Solo):
        def allgather(self, text):
            return ["triton", "triton", text]

    for name in ("triton", "lanes"):
        components = SimpleNamespace(job=SimpleNamespace(executor=name))
        if name == "triton":
            choose_executor.require_one_choice(components, Ranks())
            continue
        with pytest.raises(JobError, match="auto chose triton on rank 0 and lanes on rank 2"):
            choose_executor.require_one_choice(components, Ranks())


class InPlace(FedAvg):
    """Adds in place to what all clients share, which cannot be done for many at once."""

    def finish(self, y, local, message, state, client):
        moved = torch.zeros_like(message.x)
        moved += message.x - y
        return Upload(moved), state


def test_what_cannot_be_done_at_once_is_told_or_done_alone(tmp_path):
    job = tree(tmp_path, softmax_problem(), {"name": f"{__name__}.InPlace"}, rounds=1)
    with pytest.raises(JobError, match=r"executor: block cannot train .*; say executor=sequential"):
        play(tmp_path, {**job, "executor": "block"})
    assert not list(tmp_path.glob("run*"))
    twenty = tree(tmp_path, softmax_problem(sizes=20 * [2]), job["algorithm"], **AUTO_JOB)
    run = play(tmp_path, twenty)
    (told,) = [line for line in RunDir(run.directory).last_start["notes"] if "executor" in line]
    assert "executor: sequential (auto: executor: block cannot train" in told


@pytest.mark.parametrize("size", [7, 100_000])
def test_more_places_than_clients_are_refused(tmp_path, size):
    job = tree(tmp_path, softmax_problem(), {"name": "fedavg"}, executor="block", block_size=size)
    with pytest.raises(JobError, match=f"block_size: found {size}, but there are 6 clients"):
        play(tmp_path, job)
