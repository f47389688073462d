"""MOON and FedNTD on a network of two layers, against plain torch with one module a client."""

from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, log_softmax, softmax

import hpcfl
from hpcfl.algorithms.base import Nothing, Server
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.errors import ClientError, JobError
from hpcfl.local.block import block_executor
from hpcfl.local.sequential import Sequential
from hpcfl.models.flat_vector import last_dense
from tests.algorithms.facts import COHORT
from tests.algorithms.play import parts, softmax_problem, tree

PROBLEM = softmax_problem()
LR, STEPS, ROUNDS = 0.2, 3, 3
FEDNTD = {"name": "fedntd", "beta": 0.7, "tau": 2.0}
MOON = {"name": "moon", "mu": 2.0, "tau": 0.4}


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def features(net, x):
    return net[1](net[0](x))


def moon(net, received, last, x, y):
    f, f_x, f_z = (features(one, x) for one in (net, received, last))
    near = (cosine_similarity(f, f_x.detach()) / MOON["tau"]).exp()
    far = (cosine_similarity(f, f_z.detach()) / MOON["tau"]).exp()
    return cross_entropy(net(x), y) - MOON["mu"] * (near / (near + far)).log().mean()


def fedntd(net, received, last, x, y):
    tau, loss = FEDNTD["tau"], cross_entropy(net(x), y)
    for logits, teacher, label in zip(net(x), received(x).detach(), y, strict=True):
        others = [j for j in range(3) if j != label]
        q = log_softmax(logits[others] / tau, 0)
        p = softmax(teacher[others] / tau, 0)
        loss = loss + FEDNTD["beta"] * tau**2 * kl_div(q, p, reduction="sum") / len(y)
    return loss


def plain(loss):
    """[P], the model after all rounds."""
    received, own = network(), {}
    clients = [
        (torch.from_numpy(PROBLEM.x[rows]), torch.from_numpy(PROBLEM.y[rows]))
        for rows in map(PROBLEM.rows, range(PROBLEM.population))
    ]
    for _ in range(ROUNDS):
        ends = []
        for i, (x, y) in enumerate(clients):
            net = deepcopy(received)
            optimizer = torch.optim.SGD(net.parameters(), lr=LR)
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss(net, received, own.get(i, received), x, y).backward()
                optimizer.step()
            own[i] = net
            ends.append(nn.utils.parameters_to_vector(net.parameters()).detach())
        weights = torch.tensor([float(len(y)) for _, y in clients], dtype=torch.float64)
        mean = torch.stack(ends).T @ (weights / weights.sum())
        nn.utils.vector_to_parameters(mean, received.parameters())
    return nn.utils.parameters_to_vector(received.parameters()).detach()


@pytest.mark.parametrize("executor", ["sequential", "block"])
@pytest.mark.parametrize(("keys", "loss"), [(MOON, moon), (FEDNTD, fedntd)], ids=["moon", "fedntd"])
def test_equals_plain_torch(tmp_path, keys, loss, executor):
    job = {
        "algorithm": keys,
        "local": {"lr": LR, "epochs": STEPS, "batch_size": "full"},
        "cohort": {"kind": "cyclic", "size": PROBLEM.population},
        "precision": "float64",
        "executor": executor,
        "rounds": ROUNDS,
    }
    data = hpcfl.Data(train=(PROBLEM.x, PROBLEM.y), owners=PROBLEM.client)
    found = hpcfl.run("quickstart", job, model=network(), data=data, out=tmp_path / "run").x
    torch.testing.assert_close(found, plain(loss), rtol=0, atol=1e-12)
    assert (found - plain(lambda net, *_: cross_entropy(net(_[2]), _[3]))).abs().max() > 1e-3


class NoDense(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x[:, :3] * self.scale


def test_moon_needs_a_dense_layer(tmp_path):
    data = hpcfl.Data(train=(PROBLEM.x, PROBLEM.y), owners=PROBLEM.client)
    with pytest.raises(JobError, match=r"moon uses features, the input of a last dense layer, and"):
        hpcfl.run(
            "quickstart", {"algorithm": MOON}, model=NoDense(), data=data, out=tmp_path / "run"
        )


@pytest.mark.parametrize(("deep", "method"), [(False, MOON), (True, MOON), (False, FEDNTD)])
def test_features_that_stay_the_same_are_told(tmp_path, capsys, deep, method):
    data = hpcfl.Data(train=(PROBLEM.x, PROBLEM.y), owners=PROBLEM.client)
    model = network() if deep else nn.Linear(4, 3)
    job = {"algorithm": method, "rounds": 1}
    hpcfl.run("quickstart", job, model=model, data=data, out=tmp_path / "run")
    told = "moon uses features, the input of the last dense layer, but no other layer of the model"
    assert (told in capsys.readouterr().err) == (not deep and method is MOON)


@pytest.mark.parametrize("name", ["fedntd", "fedlc"])
def test_losses_of_logits_need_classes(tmp_path, name):
    data = hpcfl.Data(train=(PROBLEM.x, np.ones(len(PROBLEM.x))), owners=PROBLEM.client)
    with pytest.raises(JobError, match=rf"{name} sees the logits of classes, and this data has"):
        hpcfl.run(
            "quickstart",
            {"algorithm": {"name": name}},
            model=nn.Linear(4, 1),
            data=data,
            out=tmp_path / "run",
        )


@dataclass(frozen=True, kw_only=True)
class Inside(FedAvg):
    """Asks for the outputs of another point too late."""

    def direction(self, point, local, grad, client):
        return grad(point, lambda f: f.losses + grad.forward(local.x).losses), local


@dataclass(frozen=True, kw_only=True)
class Summed(FedAvg):
    def direction(self, point, local, grad, client):
        return grad(point, lambda f: f.losses.mean()), local


@dataclass(frozen=True, kw_only=True)
class Again(FedAvg):
    def direction(self, point, local, grad, client):
        return grad(point, lambda f: f.losses + grad(local.x).sum()), local


@dataclass(frozen=True, kw_only=True)
class Unfit(FedAvg):
    def direction(self, point, local, grad, client):
        return grad(point, lambda f: f.losses + f.outputs), local


@pytest.mark.parametrize("executor", ["sequential", "block"])
@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Again, "grad is called inside the function of a loss; call grad and grad.forward before"),
        (Unfit, "RuntimeError: The size of tensor a"),
        (Inside, "grad is called inside the function of a loss; call grad and grad.forward before"),
        (Summed, "the terms of its loss have the shape (), expected (2,)"),
    ],
)
def test_what_a_loss_may_not_do_is_one_line(tmp_path, method, said, executor):
    job = {"algorithm": {"name": method}, "executor": executor}
    data = hpcfl.Data(train=(PROBLEM.x, PROBLEM.y), owners=PROBLEM.client)
    with pytest.raises(JobError) as refused:
        hpcfl.run("quickstart", job, model=network(), data=data, out=tmp_path / "run")
    assert said in str(refused.value)
    assert str(refused.value).startswith("algorithm.name: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_calls_inside_a_loss_are_refused_in_rounds_too(tmp_path, executor):
    """In sequence they would replace the parameters before the gradient is taken."""
    job = tree(tmp_path, PROBLEM, {"name": f"{__name__}.Inside"}, executor=executor)
    made = parts(tmp_path, {**job, "algorithm": {"name": "fedavg"}})
    algorithm = Inside().with_facts(made.training.algorithm.facts)
    sequential = Sequential(algorithm, made.gradient(), made.training.descent)
    pool = made.population.clients
    executors = {
        "sequential": sequential,
        "block": block_executor(
            sequential, made.population.clients, made.model.x0, shared=[], size=2
        ),
    }
    tasks = [pool.task(client, 0) for client in (0, 1)]
    message = algorithm.broadcast(algorithm.init_server(made.model.x0), COHORT)
    with pytest.raises(ClientError) as refused:
        executors[executor].train(message, tasks, [Nothing()] * 2)
    assert "inside the function of a loss" in str(refused.value.__cause__)


class Tied(nn.Module):
    """Its last layer has the weights of its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x):
        return self.last(self.embedding(x))


def test_features_are_the_input_of_the_last_dense_layer():
    model = Tied()
    assert last_dense(model) is model.last


def test_fedlc_has_a_loss_of_its_own(tmp_path):
    job = {"algorithm": {"name": "fedlc"}, "loss": "focal"}
    with pytest.raises(
        JobError, match=r"^algorithm\.name: fedlc has a loss of its own; remove loss: focal"
    ):
        hpcfl.run("quickstart", job, out=tmp_path / "run")


class Centres(NamedTuple):
    features: torch.Tensor  # [classes, F]


@dataclass(frozen=True, kw_only=True)
class Centred(FedAvg):
    """Draws features to the batch's mean, and sends the sums of each class: as FedProto does."""

    padded: bool = False  # whether padding counts too, which it must not

    def begin(self, message, state, client):
        return Centres(self._first(message.x))

    def direction(self, point, local, grad, client):
        made = grad.forward(point)
        present = made.present.new_ones(len(made.present)) if self.padded else made.present
        ones = (made.label_mask * present.unsqueeze(1)).to(point.dtype)

        def terms(forward):
            mean = (forward.features * present.unsqueeze(1)).sum(0) / present.sum()
            return forward.losses + (forward.features - mean).square().mean(1)

        return grad(point, terms), Centres(local.features + ones.T @ made.features)

    def finish(self, y, local, message, state, client):
        return Sums(message.x - y, local.features), state

    def _first(self, x):
        return x.new_zeros(3, self.layout.features)


class Sums(NamedTuple):
    delta: torch.Tensor
    features: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Collects(Centred):
    """Adds the mean of what is sent to the model, so that a difference shows."""

    def update(self, server, mean, cohort):
        return Server(server.x - mean.delta + 1e-3 * mean.features.sum())


@pytest.mark.parametrize("padded", [False, True])
def test_padding_is_told_to_hooks_that_sum_over_a_batch(tmp_path, padded):
    """Features are 6 wide and classes are 3; clients have unequal batches."""
    job = {
        "algorithm": {"name": Collects, "padded": padded},
        "local": {"lr": LR, "epochs": 2, "batch_size": 3},
        "cohort": {"kind": "cyclic", "size": PROBLEM.population},
        "precision": "float64",
        "rounds": 2,
    }
    data = hpcfl.Data(train=(PROBLEM.x, PROBLEM.y), owners=PROBLEM.client)
    one, many = (
        hpcfl.run(
            "quickstart",
            {**job, "executor": executor},
            model=network(),
            data=data,
            out=tmp_path / executor,
        ).x
        for executor in ("sequential", "block")
    )
    assert ((one - many).abs().max() < 1e-12) == (not padded)
