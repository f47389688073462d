"""``local.momentum``: torch.optim.SGD at every client, and which methods allow it.

``test_reference.py`` compares every method that allows it with plain numpy, ``test_block.py`` both
executors, ``by_hand`` has numbers.
"""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.layout import stand_in
from hpcfl.algorithms.optim import Sgd
from hpcfl.errors import JobError
from hpcfl.job.load import load
from tests.algorithms.methods import ALL, ALLOW_MOMENTUM, REFUSE_MOMENTUM
from tests.algorithms.play import Problem, parts, softmax_problem, tree
from tests.algorithms.reference import Setting
from tests.algorithms.test_torch import follow
from tests.algorithms.trace import trace

PROBLEM = softmax_problem()
ONE = Problem(PROBLEM.x, PROBLEM.y, np.zeros_like(PROBLEM.client))
STEPS = 7


def torch_path(job, x0, rounds, steps, **sgd):
    """[rounds + 1, P]: one client's model, by a new torch.optim.SGD in every round."""
    words = {"lr": 0.2, "lr_decay": 0.8, "epochs": None, "steps": steps, "batch": 8}
    s = Setting(problem=ONE, x0=x0, cohorts=[], participation=1.0, **words)
    path = [x0]
    for t in range(rounds):
        gradients, rates = list(s.batches(0, t)), [s.eta(t)] * steps
        path.append(follow(partial(torch.optim.SGD, **sgd), gradients, rates, path[-1])[-1])
    return np.stack(path)


@pytest.mark.parametrize("executor", ["sequential", "block"])
@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("nesterov", [False, True])
def test_one_client_is_torch_s_sgd(tmp_path, nesterov, wd, executor):
    """After 1, 2, ... steps of one round; and over rounds, each with a new velocity."""
    for rounds, steps in [*((1, steps) for steps in range(1, STEPS + 1)), (3, STEPS)]:
        sgd = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": wd}
        local = {"steps": steps, "batch_size": 8, "lr": 0.2, "lr_decay": 0.8, **sgd}
        job = tree(tmp_path, ONE, {"name": "fedavg"}, local=local, rounds=rounds, executor=executor)
        found = trace(job).xs
        expected = torch_path(job, found[0], rounds, steps, **sgd)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    plain = torch_path(job, found[0], rounds, steps, weight_decay=wd)
    assert np.abs(found[-1] - plain[-1]).max() > 0.1


@pytest.mark.parametrize(
    "name",
    [name for name in ALLOW_MOMENTUM if name != "streaming_diloco"],  # which has a second step
)
def test_one_step_has_no_velocity_before_it(tmp_path, name):
    """Bit for bit; and with more steps it has one."""
    paths = {}
    for steps in (1, 3):
        for momentum in (0.0, 0.9):
            local = {"steps": steps, "batch_size": 4, "lr": 0.3, "momentum": momentum}
            job = tree(tmp_path, PROBLEM, ALL[name], local=local, precision="float32")
            paths[steps, momentum] = trace(job).xs
    assert (paths[1, 0.9] == paths[1, 0.0]).all()
    assert np.abs(paths[3, 0.9] - paths[3, 0.0]).max() > 1e-3


def test_without_momentum_there_is_no_velocity():
    """And the step is the direction itself; with momentum, one vector for each client."""
    d, layout = torch.tensor([1.0, -0.0]), stand_in(2)
    step, velocity = Sgd().step(d, d, Sgd().init(d, layout), 0.0, layout)
    assert step is d
    assert velocity.numel() == 0
    assert torch.equal(Sgd(momentum=0.5).init(d, layout), torch.zeros(2))


@pytest.mark.parametrize("name", [name for name in ALL if name not in ALLOW_MOMENTUM])
def test_a_method_says_why_it_refuses(tmp_path, name):
    local = {"steps": 2, "lr": 0.1, "momentum": 0.5}
    job = tree(tmp_path, PROBLEM, ALL[name], local=local)
    method = ALL[name]["name"]
    with pytest.raises(JobError) as refused:
        parts(tmp_path, job)
    line = str(refused.value)
    assert line.startswith(f"algorithm.name: {method} takes plain SGD alone (")
    assert REFUSE_MOMENTUM[method] in line
    end = "), found momentum 0.5; set local.momentum=0, or another algorithm"
    assert line.endswith(end)
    assert "\n" not in line
    parts(tmp_path, {**job, "local": {"steps": 2, "lr": 0.1, "momentum": 0.0}})


@pytest.mark.parametrize("name", ALLOW_MOMENTUM)
def test_the_other_methods_take_momentum(tmp_path, name):
    parts(tmp_path, tree(tmp_path, PROBLEM, ALL[name], local={"lr": 0.1, "momentum": 0.5}))


def test_fednova_refuses_nesterov(tmp_path):
    """Its a_i are those of plain momentum."""
    local = {"steps": 2, "lr": 0.1, "momentum": 0.5, "nesterov": True}
    with pytest.raises(JobError, match=r"^algorithm\.name: fednova counts steps of plain momentum"):
        parts(tmp_path, tree(tmp_path, PROBLEM, {"name": "fednova"}, local=local))


class OwnMethod(FedAvg):
    """A class of a user's, with a reason of its own."""

    def resolve(self, facts):
        facts.require_plain_sgd("no reason")
        return self


@pytest.mark.parametrize(
    ("local", "found"),
    [
        ({"momentum": 0.5}, "momentum 0.5; set local.momentum=0"),
        ({"optimizer": "adam"}, "adam; set local.optimizer=sgd"),
    ],
)
def test_a_class_of_a_user_s_may_refuse(tmp_path, local, found):
    said = rf"^algorithm\.name: \S+OwnMethod takes plain SGD alone \(no reason\), found {found}, or"
    for name, refused in (
        ("OwnMethod", pytest.raises(JobError, match=said)),
        ("FedAvg", nullcontext()),
    ):
        job = tree(tmp_path, PROBLEM, {"name": f"{__name__}.{name}"}, local={"lr": 0.1, **local})
        with refused:
            parts(tmp_path, job)


@pytest.mark.parametrize(
    ("local", "said"),
    [
        ({"nesterov": True}, "nesterov: found true with momentum 0, which it would not change"),
        ({"momentum": 1.0}, "local.momentum: found 1.0, expected a number less than 1"),
        (
            {"momentum": -0.1},
            "local.momentum: found -0.1, expected a number greater than",
        ),
    ],
)
def test_settings_that_are_none(tmp_path, local, said):
    with pytest.raises(JobError, match=said):
        load(tree(tmp_path, PROBLEM, {"name": "fedavg"}, local={"lr": 0.1, **local}))
