"""``local.keep_optimizer``: an optimiser a client, whose steps of all rounds are one sequence."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import cos, pi
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.optim import Optimizer
from hpcfl.errors import JobError
from hpcfl.local.joined import split
from hpcfl.runs.manifest import committed
from hpcfl.start.components.personal_models import PersonalModels
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from tests.algorithms.methods import ALL, ALLOW_NESTEROV, SAMPLE, WHOLE
from tests.algorithms.play import Problem, kept, parts, play, softmax_problem, states, tree, xs
from tests.algorithms.reference import Setting
from tests.algorithms.test_optimizers import newton_schulz
from tests.algorithms.test_torch import follow
from tests.algorithms.trace import trace

PROBLEM = softmax_problem()
ONE = Problem(PROBLEM.x, PROBLEM.y, np.zeros_like(PROBLEM.client))
COHORTS = [[1, 4], [0, 1, 2, 3, 4, 5], [5], [2, 4], [0, 1], [1, 3, 4]]
EXECUTORS = ["sequential", "block"]


class LoopedMuon:
    """Muon over weights [3, 4] and biases [3], in numpy; with the interface of torch.optim."""

    def __init__(self, parameters, lr, weight_decay=0.0):
        (self._parameter,) = parameters
        self.param_groups = [{"lr": lr}]
        self._decay, self._steps = weight_decay, 0
        self._matrix, self._first, self._second = np.zeros((3, 4)), np.zeros(3), np.zeros(3)

    def step(self):
        y, d = self._parameter.detach().numpy(), self._parameter.grad.numpy()
        self._steps += 1
        self._matrix = 0.95 * self._matrix + 0.05 * d[:12].reshape(3, 4)
        along = newton_schulz(0.05 * d[:12].reshape(3, 4) + 0.95 * self._matrix)
        self._first = 0.9 * self._first + 0.1 * d[12:]
        self._second = 0.95 * self._second + 0.05 * d[12:] ** 2
        root = np.sqrt(self._second / (1 - 0.95**self._steps)) + 1e-10
        bias = self._first / (1 - 0.9**self._steps) / root
        moved = np.concatenate([along.ravel(), bias]) + self._decay * y
        self._parameter.data -= self.param_groups[0]["lr"] * torch.from_numpy(moved)


class Case(NamedTuple):
    keys: dict[str, object]  # of ``local``
    alone: Callable[..., object]  # torch's class, or one of its interface


CASES = {
    "momentum": Case({"momentum": 0.9}, partial(torch.optim.SGD, momentum=0.9)),
    "nesterov": Case(
        {"momentum": 0.7, "nesterov": True}, partial(torch.optim.SGD, momentum=0.7, nesterov=True)
    ),
    "adam": Case({"optimizer": "adam"}, torch.optim.Adam),
    "adamw": Case(
        {"optimizer": {"kind": "adamw", "b1": 0.8, "b2": 0.95}},
        partial(torch.optim.AdamW, betas=(0.8, 0.95)),
    ),
    "muon": Case({"optimizer": "muon"}, LoopedMuon),
}


def rates(steps, warmup, floor):
    """The cosine's factors, written out for the whole run."""
    found = [(n + 1) / warmup for n in range(warmup)]
    left = steps - warmup
    return found + [floor + (1 - floor) * (1 + cos(pi * k / left)) / 2 for k in range(left)]


def by_client(s, make, factor=lambda t, k: 1.0):
    """[T + 1, P]: an optimiser of torch's a client, over all rounds; the mean of the ends."""
    made = {}

    def new():
        parameter = torch.nn.Parameter(torch.from_numpy(s.x0.copy()))
        return parameter, make([parameter], lr=1.0)

    def after(t, cohort, x):
        ends = {}
        for i in cohort:
            parameter, optimizer = made.setdefault(i, new())
            parameter.data = torch.from_numpy(x.copy())
            for k, gradient in enumerate(s.batches(i, t)):
                parameter.grad = torch.from_numpy(gradient(parameter.detach().numpy()))
                optimizer.param_groups[0]["lr"] = s.eta(t) * factor(t, k)
                optimizer.step()
            ends[i] = parameter.detach().numpy().copy()
        return x - s.delta(x, ends)

    return s.play(after)


def job(folder, keys, *, problem=PROBLEM, cohorts=COHORTS, **more):
    local = {"batch_size": 4, "lr": 0.05, "lr_decay": 0.9, "keep_optimizer": True, **keys}
    cohort = {"kind": "replay", "rounds": cohorts}
    changes = {"local": local, "cohort": cohort, "rounds": len(cohorts), **more}
    return tree(folder, problem, {"name": "fedavg"}, **changes)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("name", CASES)
def test_each_client_has_an_optimizer_of_torch_s(tmp_path, name, wd, executor):
    """Partial cohorts, and clients of 1 to 6 steps."""
    keys, alone = CASES[name]
    keys = {**keys, "epochs": 2, "weight_decay": wd}
    found = trace(job(tmp_path, keys, executor=executor)).xs
    words = {"lr": 0.05, "lr_decay": 0.9}
    s = Setting(problem=PROBLEM, x0=found[0], cohorts=COHORTS, participation=1.0, **words)
    assert len({s.K(i) for i in range(6)}) > 2
    expected = by_client(s, partial(alone, weight_decay=wd))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_with_a_cosine_by_steps(tmp_path, name, executor):
    """The steps of clients that are absent are counted too: a rate needs no state."""
    keys, alone = CASES[name]
    schedule = {"kind": "cosine", "warmup": 5, "floor": 0.1}
    keys = {**keys, "steps": 3, "weight_decay": 0.1, "step_schedule": schedule}
    found = trace(job(tmp_path, keys, executor=executor)).xs
    words = {"lr": 0.05, "lr_decay": 0.9, "epochs": None, "steps": 3}
    s = Setting(problem=PROBLEM, x0=found[0], cohorts=COHORTS, participation=1.0, **words)
    factors = rates(18, 5, 0.1)
    expected = by_client(s, partial(alone, weight_decay=0.1), lambda t, k: factors[3 * t + k])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_one_client_is_the_optimizer_alone(tmp_path, name):
    """All rounds' steps by one object; with a fresh state in each round it is not."""
    keys, alone = CASES[name]
    keys = {**keys, "steps": 3, "lr_decay": 1.0}
    given = {"problem": ONE, "cohorts": [[0]] * 4}
    found = trace(job(tmp_path, keys, **given)).xs
    words = {"lr": 0.05, "epochs": None, "steps": 3}
    s = Setting(problem=ONE, x0=found[0], cohorts=[], participation=1.0, **words)
    gradients = [gradient for t in range(4) for gradient in s.batches(0, t)]
    expected = follow(partial(alone, weight_decay=0.0), gradients, [0.05] * 12, found[0])[::3]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    fresh = trace(job(tmp_path, {**keys, "keep_optimizer": False}, **given)).xs
    assert np.abs(fresh[1] - found[1]).max() == 0.0
    assert np.abs(fresh[2:] - found[2:]).max(axis=1).min() > 1e-4


class Inner(NamedTuple):
    total: Tensor


class Outer(NamedTuple):
    steps: Tensor
    rest: tuple[Inner, Tensor]


@dataclass(frozen=True, kw_only=True)
class Nested(Optimizer):
    """A class of a user's: the mean of all directions, and the last point."""

    def init(self, y, layout):
        return Outer(y.new_zeros((), dtype=torch.int64), (Inner(torch.zeros_like(y)), y))

    def step(self, d, point, state, decay, layout):
        steps, total = state.steps + 1, state.rest[0].total + d
        return total / steps, Outer(steps, (Inner(total), point))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_user_s_nested_state(tmp_path, executor):
    """Its tensors have names by its fields; the mean is over the steps of all rounds."""
    keys = {"steps": 3, "lr_decay": 1.0, "optimizer": f"{__name__}.Nested"}
    cohorts = [[0], [1], [0]]
    job_ = kept(job(tmp_path, keys, cohorts=cohorts, executor=executor))
    run = play(tmp_path, job_).directory
    described = parts(tmp_path, job_)
    names = [field.name for field in described.training.schema.client_state.fields]
    assert names == [
        "optimizer_steps",
        "optimizer_rest_0_total",
        "optimizer_rest_1",
    ]
    first, second, *others = states(run, described)
    assert (int(first.optimizer_steps), int(second.optimizer_steps)) == (6, 3)
    assert others == [None] * 4
    x = xs(tmp_path, job_)
    s = Setting(problem=PROBLEM, x0=x[0], cohorts=[], participation=1.0, lr=0.05, steps=3)
    total, count, y = np.zeros_like(x[0]), 0, x[0]
    for t in (0, 2):
        y = x[t]
        for gradient in s.batches(0, t):
            last, total, count = y, total + gradient(y), count + 1
            y = y - 0.05 * total / count
    np.testing.assert_allclose(x[3], y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(split(first).optimizer.rest[1], last, rtol=0, atol=1e-12)


def test_a_narrow_store_keeps_counts_whole(tmp_path):
    """A bfloat16 has no 257: bias corrections count in float64, moments are narrowed."""
    cohorts = [[0]] * 90
    keys = {"steps": 3, "optimizer": "adam", "lr": 0.01}
    narrow = kept(
        job(tmp_path, keys, cohorts=cohorts, store={"dtype": "bfloat16"}, precision="float32")
    )
    narrow["checkpoint"] = {"every": 90}
    run = play(tmp_path, narrow).directory
    stored = parts(tmp_path, narrow).training.stored_state
    assert [(f.name, f.dtype) for f in stored.fields] == [
        ("optimizer_m", torch.bfloat16),
        ("optimizer_v", torch.bfloat16),
        ("optimizer_steps", torch.float64),
    ]
    assert stored.bytes == 2 * 15 * 2 + 8
    folder = committed(run / "checkpoints")[-1].folder
    with Reader(Table.load(folder, run / "stores"), stored) as reader:
        assert reader.read(0).optimizer_steps == 270


def test_personal_scores_begin_afresh(tmp_path):
    """Fine-tuning of one step by Adam is as long as a first step, whatever the clients keep."""
    keys = {"steps": 3, "optimizer": {"kind": "adam", "eps": 0.0}, "lr": 0.05, "lr_decay": 1.0}
    described = parts(tmp_path, job(tmp_path, keys, evaluate={"personal": {"steps": 1}}))
    x = described.model.x0
    first = described.first_state(1)

    class Store:
        def load(self, client):
            return first._replace(**{name: leaf + 5 for name, leaf in first._asdict().items()})

    models = PersonalModels(described, Store(), described.gradient())
    (tuned,) = models.scored([1], x, 1)
    torch.testing.assert_close((x - tuned).abs(), torch.full_like(x, 0.05), rtol=0, atol=1e-12)


REFUSED = {
    "plain SGD": ({}, "keep_optimizer: found true with plain SGD, which has nothing to keep"),
    "no state": (
        {"optimizer": "tests.algorithms.test_local_optimizer.Sign"},
        "Sign has no state to keep",
    ),
    "an int": ({"optimizer": f"{__name__}.Counting"}, "Counting has a state with a int, which is"),
    "another form": ({"optimizer": f"{__name__}.Growing"}, "Growing has a state of another form"),
}


@dataclass(frozen=True, kw_only=True)
class Counting(Optimizer):
    """Counts by a number of Python's."""

    def init(self, y, layout):
        return (0,)

    def step(self, d, point, state, decay, layout):
        return d, (state[0] + 1,)


@dataclass(frozen=True, kw_only=True)
class Growing(Optimizer):
    """Begins with nothing."""

    def init(self, y, layout):
        return (y[:0],)

    def step(self, d, point, state, decay, layout):
        return d, (d,)


@pytest.mark.parametrize("why", REFUSED)
def test_refused_in_one_line(tmp_path, why):
    keys, said = REFUSED[why]
    with pytest.raises(JobError) as refused:
        parts(tmp_path, job(tmp_path, {"steps": 2, **keys}))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


class Own(NamedTuple):
    optimizer: Tensor


class Named(FedAvg):
    """Its clients have a field of hpcfl's name."""

    def init_client(self, x0, random_init):
        return Own(x0)


def test_a_field_of_the_same_name_is_refused(tmp_path):
    algorithm = {"name": f"{__name__}.Named"}
    given = {**job(tmp_path, {"steps": 2, "momentum": 0.5}), "algorithm": algorithm}
    with pytest.raises(JobError, match="Own has a field optimizer, which hpcfl adds for a kept"):
        parts(tmp_path, given)


@pytest.mark.parametrize("name", [name for name in SAMPLE if name in ALLOW_NESTEROV])
def test_every_method_that_allows_momentum(tmp_path, name):
    """With states, warm starts and models of its own; alike in both executors."""
    more = {} if name in WHOLE else {"cohort": {"kind": "uniform", "size": 3}}
    local = {"epochs": 1, "batch_size": 4, "lr": 0.1, "momentum": 0.8}
    paths = []
    for executor, keep in (("sequential", True), ("block", True), ("sequential", False)):
        given = local | {"keep_optimizer": keep}
        job = tree(tmp_path, PROBLEM, ALL[name], local=given, executor=executor, **more)
        paths.append(trace(job).xs)
    found, block, fresh = paths
    np.testing.assert_allclose(block, found, rtol=0, atol=1e-11)
    if name != "dpfedavg":  # whose clipped uploads may be equal
        assert np.abs(found - fresh).max() > 1e-4


@pytest.mark.parametrize("statistics", ["mean", "local", "frozen"])
def test_beside_running_statistics(tmp_path, statistics):
    """Both lie beside the method's own state; each is what it is without the other."""
    model = {"name": "module", "of": "tests.algorithms.test_statistics.Normed"}
    model |= {"statistics": statistics}
    keys = {"steps": 3, "momentum": 0.9}
    cohorts, big = [[0, 3], [1, 3], [3]], softmax_problem((8, 8, 4, 12))
    ends = []
    for executor in EXECUTORS:
        given = job(tmp_path, keys, problem=big, cohorts=cohorts, executor=executor, model=model)
        described = parts(tmp_path, given)
        run = play(tmp_path, kept(given)).directory
        ends.append(states(run, described))
        names = [field.name for field in described.training.schema.client_state.fields]
        assert names == ["statistics"] * (statistics == "local") + ["optimizer"]
    for alone, together in zip(*ends, strict=True):
        assert (alone is None) == (together is None)
        if alone is not None:
            torch.testing.assert_close(tuple(together), tuple(alone), rtol=0, atol=1e-11)
            assert split(alone).optimizer.abs().max() > 0


def test_fednova_refuses(tmp_path):
    """Its weights are those of a momentum that begins at zero."""
    given = {**job(tmp_path, {"steps": 2, "momentum": 0.5}), "algorithm": {"name": "fednova"}}
    with pytest.raises(JobError, match="fednova has a_i of a momentum that is 0 at the start of"):
        parts(tmp_path, given)
