"""``local.step_schedule``: a learning rate of every local step, in every executor."""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.clients.section import Local
from hpcfl.clients.step_schedule import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    OwnSchedule,
)
from hpcfl.errors import HpcflError, JobError
from hpcfl.job.load import load
from hpcfl.start.components.executors import make_executor
from tests.algorithms.facts import COHORT
from tests.algorithms.play import parts, softmax_problem, tree
from tests.algorithms.trace import trace

PROBLEM = softmax_problem()
STEPS = 3


def cooled(n, steps, power=1.0):
    """A schedule of a user's: a power of what is left."""
    return ((steps - n) / steps) ** power


class Cooled:
    """The same as a class."""

    def __init__(self, power):
        self.power = power

    def __call__(self, n, steps):
        return np.float32(cooled(n, steps, self.power))


def nothing(n, steps):
    return None if n else 1.0


def late(n, steps):
    """Wrong only where nobody has looked before the run: in the middle of round 2."""
    return -1.0 if n == 4 else 1.0


def late_for_the_server(n, steps):
    """In the last step of round 2, whose rate is the cohort's."""
    return float("nan") if n == 5 else 1.0


OWN = f"{__name__}.cooled"


def factors(schedule, steps=10):
    return [schedule.factor(n, steps) for n in range(steps)]


def test_numbers_by_hand():
    warm = [0.25, 0.5, 0.75, 1.0]
    assert factors(ConstantSchedule()) == [1.0] * 10
    assert factors(ConstantSchedule(warmup=4), 6) == [*warm, 1.0, 1.0]
    assert factors(LinearSchedule(), 4) == [1.0, 0.75, 0.5, 0.25]
    assert factors(LinearSchedule(warmup=4, floor=0.5), 8) == [*warm, 1.0, 0.875, 0.75, 0.625]
    root = 3**0.5
    found = factors(CosineSchedule(warmup=4, floor=0.2), 10)
    fall = [1.0, 0.6 + 0.2 * root, 0.8, 0.6, 0.4, 0.6 - 0.2 * root]
    assert found == pytest.approx([*warm, *fall], rel=1e-12)
    assert factors(CosineSchedule(warmup=20), 3) == [1 / 20, 2 / 20, 3 / 20]  # never done
    assert factors(OwnSchedule(of=OWN, keys={"power": 2.0}), 2) == [1.0, 0.25]
    assert factors(OwnSchedule(of=f"{__name__}.Cooled", keys={"power": 2.0}), 2) == [1.0, 0.25]


def test_a_step_s_rate():
    """By round and step, over the decay by round; fine-tuning's further steps as the last one."""
    local = Local(lr=0.8, lr_decay=0.5, steps=2, step_schedule=LinearSchedule())
    found = [local.lr_of_step(t, k, rounds=3) for t in range(3) for k in range(2)]
    expected = [0.8, 0.8 * 5 / 6, 0.4 * 4 / 6, 0.4 * 3 / 6, 0.2 * 2 / 6, 0.2 / 6]
    assert found == pytest.approx(expected, rel=1e-15)
    assert local.lr_of_step(1, 9, rounds=3) == local.lr_of_step(1, 1, rounds=3)


def job(folder, schedule, algorithm="fedavg", **more):
    local = {"steps": STEPS, "batch_size": 4, "lr": 0.3, "step_schedule": schedule}
    keys = algorithm if isinstance(algorithm, dict) else {"name": algorithm}
    return tree(folder, PROBLEM, keys, **{"local": local | more.pop("local", {}), **more})


SAME = {
    "constant": "constant",
    "a warm-up of one step": {"kind": "constant", "warmup": 1},
    "a cosine to 1": {"kind": "cosine", "floor": 1.0},
    "a line to 1": {"kind": "linear", "floor": 1.0},
}


@pytest.mark.parametrize("executor", ["sequential", "block"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_schedule(tmp_path, executor, momentum):
    """Bit for bit, of plain steps too; and a real one is another run."""
    given = {"executor": executor, "local": {"momentum": momentum}}
    plain = trace(job(tmp_path, None, **given)).xs
    for schedule in SAME.values():
        assert (trace(job(tmp_path, schedule, **given)).xs == plain).all()
    other = trace(job(tmp_path, {"kind": "constant", "warmup": 5}, **given)).xs
    assert np.abs(other[1:] - plain[1:]).max(axis=1).min() > 1e-3


class Rates(NamedTuple):
    begun: Tensor
    first: Tensor
    last: Tensor
    count: Tensor


class Upload(NamedTuple):
    delta: Tensor
    begun: Tensor
    first: Tensor
    last: Tensor
    finished: Tensor


class Server(NamedTuple):
    x: Tensor
    rates: Tensor


@dataclass(frozen=True, kw_only=True)
class Tells(FedAvg):
    """Its server keeps the rates that hooks are told."""

    def init_server(self, x0):
        return Server(x0, x0.new_zeros(5))

    def begin(self, message, state, client):
        zero = client.lr * 0
        return Rates(client.lr, zero, zero, zero)

    def direction(self, point, local, grad, client):
        first = torch.where(client.step == 0, client.lr, local.first)
        return grad(point), Rates(local.begun, first, client.lr + 0, local.count + 1)

    def finish(self, y, local, message, state, client):
        rates = local.begun, local.first, local.last, client.lr
        return Upload(message.x - y, *rates), state

    def update(self, server, mean, cohort):
        rates = torch.stack([*mean[1:], server.x.new_tensor(cohort.lr)])
        return Server(server.x - mean.delta, rates)


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_what_hooks_are_told(tmp_path, executor):
    """The first step's rate in begin, the last one's in finish and in the cohort."""
    given = job(tmp_path, "linear", f"{__name__}.Tells", executor=executor, rounds=2)
    _, one, two = trace(given).servers
    first, last = [0.3, 0.15], [0.2, 0.05]
    for server, a, b in zip((one, two), first, last, strict=True):
        expected = torch.tensor([a, a, b, b, b], dtype=torch.float64)
        torch.testing.assert_close(server.rates, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_block_of_unequal_steps(tmp_path, optimizer):
    """Each client's finish is told the rate of its own last step."""
    local = {"optimizer": optimizer, "steps": 5}
    uploads = []
    for executor in ("sequential", "block"):
        given = job(tmp_path, "cosine", f"{__name__}.Tells", executor=executor, local=local)
        described = parts(tmp_path, given)
        algorithm, pool = described.training.algorithm, described.population.clients
        x = described.model.x0
        message = algorithm.broadcast(algorithm.init_server(x), COHORT)
        tasks = [pool.task(client, 1, steps) for client, steps in enumerate((1, 5, 2, 4, 5, 3))]
        states = [algorithm.init_client(x, lambda x=x: x)] * 6
        ran = make_executor(described, described.gradient())
        uploads.append([result.upload for result in ran.train(message, tasks, states)])
        rates = [described.job.lr_of_step(1, task.steps - 1) for task in tasks]
    for alone, together, rate in zip(*uploads, rates, strict=True):
        assert float(alone.finished) == pytest.approx(rate, rel=1e-15)
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


DIVIDE = {
    "scaffold": "option 2 divides",
    "fedgamma": "option 2 divides",
    "fedlesam_s": "option 2 divides",
    "fedcm": "by eta K",
    "mofedsam": "by eta K",
    "fedadc": "by eta",
    "fedadamw": "by eta K",
    "fedlada": "by eta K",
    "fedmuon": "by eta K",
    "fedmoswa": "from one eta",
    "server_only": "one eta a round",
}


@pytest.mark.parametrize("name", DIVIDE)
def test_a_method_that_divides_by_one_rate_refuses(tmp_path, name):
    said = rf"{name} needs one learning rate in all steps of a round \(.*{DIVIDE[name]}.*, found "
    with pytest.raises(JobError, match=f"{said}the schedule cosine by steps; set local.step"):
        parts(tmp_path, job(tmp_path, "cosine", name))
    parts(tmp_path, job(tmp_path, None, name))


@pytest.mark.parametrize("keys", [{"name": "fednova"}, {"name": "scaffold", "option": 1}])
def test_a_method_that_does_not_divide_allows_it(tmp_path, keys):
    parts(tmp_path, job(tmp_path, "cosine", keys))
    with pytest.raises(JobError, match="fednova needs one learning rate"):
        parts(tmp_path, job(tmp_path, "cosine", {"name": "fednova", "mu": 0.1}))


REFUSED = {
    "no steps": ({"steps": None}, "step_schedule: needs steps, by which it counts"),
    "two cosines": ({"schedule": "cosine"}, "step_schedule: found with schedule cosine, which is"),
    "a typo": ({"step_schedule": "cosin"}, "found 'cosin', expected one of constant, linear"),
    "no factor": (
        {"step_schedule": f"{__name__}.nothing"},
        "nothing gives None for step 17 of 18, expected a finite number above 0",
    ),
    "torch's": (
        {"step_schedule": "torch.optim.lr_scheduler.StepLR"},
        "expected a function of your own that takes n and T and gives a factor",
    ),
    "a missing key": (
        {"step_schedule": {"kind": "own", "of": f"{__name__}.Cooled"}},
        "local.step_schedule.keys.power: missing; test_step_schedule.Cooled needs it",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_in_one_line(tmp_path, why):
    changes, said = REFUSED[why]
    with pytest.raises(JobError) as refused:
        load(job(tmp_path, "cosine", local=changes))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("late", "late gives -1.0 for step 4 of 18, expected a finite"),
        ("late_for_the_server", "round 2: .*late_for_the_server gives nan for step 5 of 18, exp"),
    ],
)
def test_a_function_that_fails_later_is_named(tmp_path, name, said):
    """In round 2; no rate is invented."""
    with pytest.raises(HpcflError, match=said):
        trace(job(tmp_path, f"{__name__}.{name}"))


def test_a_function_of_one_s_own(tmp_path):
    """A line is what ``linear`` is."""
    own, line = (trace(job(tmp_path, schedule)).xs for schedule in (OWN, "linear"))
    np.testing.assert_allclose(own, line, rtol=0, atol=1e-14)
    falls = [np.abs(b - a).max() for a, b in pairwise(own)]
    assert falls[-1] < falls[0] / 4
