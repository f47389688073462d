"""An algorithm that changes nothing in a local step is played faster, and no otherwise."""

from dataclasses import dataclass

import pytest
import torch

from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.optim import Descent, Sgd
from hpcfl.local.gradient import Gradient
from hpcfl.local.sequential import Sequential
from hpcfl.start.components.executors import make_executor
from tests.algorithms.facts import COHORT
from tests.algorithms.play import parts, softmax_problem, tree


@dataclass(frozen=True, kw_only=True)
class Spelled(FedAvg):
    """FedAvg that says what its direction is."""

    def direction(self, point, local, grad, client):
        return grad(point), local


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_the_same_bits_as_through_the_hooks(tmp_path, monkeypatch, decay):
    steps, descend = [], Gradient.descend
    monkeypatch.setattr(Gradient, "descend", lambda *all: steps.append(1) or descend(*all))
    job = tree(tmp_path, softmax_problem(), {"name": "fedavg"}, precision="float32")
    described = parts(tmp_path, job)
    x, ends = described.model.x0, []
    for algorithm in (FedAvg(), Spelled()):
        executor = Sequential(
            algorithm, described.gradient(), Descent(Sgd(), decay, described.model.layout)
        )
        tasks = [described.population.clients.task(client, 3) for client in range(3)]
        message = algorithm.broadcast(algorithm.init_server(x), COHORT)
        states = [algorithm.init_client(x, lambda: x)] * 3
        ends.append(executor.train(message, tasks, states, local_models=True))
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one.local_model, other.local_model)
        assert torch.equal(one.loss, other.loss)
        assert not torch.equal(one.local_model, x)
    assert len(steps) == sum(int(task.client.steps) for task in tasks)


def test_a_gradient_that_is_clipped_is_taken_whole(tmp_path, monkeypatch):
    monkeypatch.delattr(Gradient, "descend")
    job = tree(tmp_path, softmax_problem(), {"name": "fedavg"})
    described = parts(tmp_path, job | {"local": {"lr": 0.1, "batch_size": 2, "clip": 0.01}})
    task, x = described.population.clients.task(0, 0), described.model.x0
    (trained,) = make_executor(described, described.gradient()).train(
        FedAvg().broadcast(FedAvg().init_server(x), COHORT), [task], [None], local_models=True
    )
    assert float((trained.local_model - x).norm()) <= 0.001 * int(task.client.steps) * (1 + 1e-9)
