"""``local.optimizer`` of a job: in both executors, by names, sections and dotted paths."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hpcfl
from hpcfl.algorithms.optim import AdamW, Optimizer, Own
from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.start.components.executors import make_executor
from tests.algorithms.facts import COHORT
from tests.algorithms.play import parts, play, softmax_problem, tree, xs

OPTIMIZERS = ["sgd", "adam", "adamw", "muon", f"{__name__}.Sign", f"{__name__}.Anchored"]


@dataclass(frozen=True, kw_only=True)
class Sign(Optimizer):
    """A class of a user's: steps along the signs of the direction."""

    scale: float = 1.0

    def init(self, y, layout):
        return y[:0]

    def step(self, d, point, state, decay, layout):
        return self.scale * d.sign() + decay * point, state


@dataclass(frozen=True, kw_only=True)
class Anchored(Optimizer):
    """Draws y to where the round began, and keeps that vector itself."""

    def init(self, y, layout):
        return Kept(y)

    def step(self, d, point, state, decay, layout):
        return d + point - state.first, state


class Kept(NamedTuple):
    first: Tensor


def job(tmp_path, optimizer, **more):
    local = {"steps": 4, "batch_size": 4, "lr": 0.02, "weight_decay": 0.05, "optimizer": optimizer}
    return tree(tmp_path, softmax_problem(), {"name": "fedprox", "mu": 0.1}, local=local, **more)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_blocks_agree_with_one_client_at_a_time(tmp_path, optimizer):
    ends = [
        play(tmp_path, job(tmp_path, optimizer, executor=executor, precision="float64")).x
        for executor in ("sequential", "block")
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
    if optimizer != "sgd":
        plain = play(tmp_path, job(tmp_path, "sgd", precision="float64")).x
        assert (ends[0] - plain).abs().max() > 1e-3


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_client_has_the_same_bits_in_every_slot(tmp_path, optimizer):
    described = parts(tmp_path, job(tmp_path, optimizer, executor="block", precision="float32"))
    algorithm, x = described.training.algorithm, described.model.x0
    executor = make_executor(described, described.gradient())
    message = algorithm.broadcast(algorithm.init_server(x), COHORT)
    found = {}
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 0, 4, 2, 1], [2]):
        tasks = [described.population.clients.task(client, 0) for client in order]
        states = [algorithm.init_client(x, lambda: x)] * len(order)
        results = executor.train(message, tasks, states)
        for client, result in zip(order, results, strict=True):
            first = found.setdefault(client, result.upload.delta)
            assert torch.equal(first, result.upload.delta)


def test_names_sections_and_paths(tmp_path):
    read = {}
    for given in ("sgd", "adamw", {"kind": "adamw", "b2": 0.9}, f"{__name__}.Sign"):
        read[str(given)] = load(job(tmp_path, given)).job.local.optimizer
    assert list(read.values()) == [
        "sgd",
        AdamW(),
        AdamW(b2=0.9),
        Own(of=f"{__name__}.Sign"),
    ]


WRONG = {
    "adagrad": "local.optimizer",
    "adamw.W": "'adamw.W' cannot be imported",
    "torch.optim.Adam": "expected a class derived from hpcfl.algorithms.optim.Optimizer",
    f"{__name__}.Sgn": "did you mean Sign?",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_name_is_one_line(tmp_path, name):
    with pytest.raises(JobError) as refused:
        load(job(tmp_path, name))
    assert WRONG[name] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_section_without_kind_is_one_line(tmp_path):
    said = (
        r"optimizer: found name, eps and no kind, expected a kind \(adam, adamw, muon or own\) and"
    )
    with pytest.raises(JobError, match=said) as refused:
        load(job(tmp_path, {"name": "adam", "eps": 1e-6}))
    assert str(refused.value).endswith("its keys; say kind in place of name")


def test_a_dotted_path_as_a_kind(tmp_path):
    with pytest.raises(JobError, match=r"muon, or \{kind: own, of: torch\.optim\.SGD\}$"):
        load(job(tmp_path, {"kind": "torch.optim.SGD"}))


def test_wrong_keys_are_one_line(tmp_path):
    with pytest.raises(JobError, match=r'optimizer\.keys: \S*Sign has no "scal" ') as refused:
        load(job(tmp_path, {"kind": "own", "of": f"{__name__}.Sign", "keys": {"scal": 2}}))
    assert "\n" not in str(refused.value)
    with pytest.raises(JobError, match=r"local.*momentum: found 0\.9, which is of optimizer sgd"):
        made = job(tmp_path, "adam")
        load({**made, "local": {**made["local"], "momentum": 0.9}})
    with pytest.raises(JobError, match=r"scaffold takes plain SGD alone \(.*, found adam; set"):
        parts(tmp_path, {**job(tmp_path, "adam"), "algorithm": {"name": "scaffold"}})


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ({"name": "fedadamw", "alpha": 0.7}, "adamw"),
        ({"name": "fedadamw", "alpha": 0.2, "v": "full", "running": True}, "adamw"),
        ({"name": "fedmuon", "alpha": 0.0, "beta": 0.95}, "muon"),
    ],
)
def test_the_first_round_is_that_of_fedavg_with_the_optimizer(tmp_path, method, optimizer):
    local = {"steps": 4, "batch_size": 4, "lr": 0.02, "weight_decay": 0.05}
    sides = (method, local), ({"name": "fedavg"}, local | {"optimizer": optimizer})
    paths = [
        xs(tmp_path, tree(tmp_path, softmax_problem(), keys, local=own, rounds=2))
        for keys, own in sides
    ]
    np.testing.assert_allclose(paths[0][1], paths[1][1], rtol=0, atol=1e-14)
    assert np.abs(paths[0][2] - paths[1][2]).max() > 1e-4


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_adam_in_a_run_is_torchs(tmp_path, executor):
    random = np.random.default_rng(0)
    x, y = random.standard_normal((30, 5)), random.integers(3, size=30)
    net = nn.Linear(5, 3).double()
    overrides = {
        "algorithm": {"name": "fedavg"},
        "cohort": {"kind": "uniform", "size": 1},
        "local": {"epochs": 7, "batch_size": 30, "lr": 0.02, "optimizer": "adam"},
        "executor": executor,
        "precision": "float64",
        "rounds": 1,
    }
    data = hpcfl.Data(train=(x, y), test=(x, y), owners=np.zeros(30, int))
    found = hpcfl.run("quickstart", overrides, model=net, data=data, out=tmp_path / "run").x

    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(7):
        optimiser.zero_grad()
        cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    expected = nn.utils.parameters_to_vector(net.parameters())
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)
