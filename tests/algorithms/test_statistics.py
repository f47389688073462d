"""Running statistics of batch normalisation: carried beside the parameters of any method."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

import hpcfl
from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.local.joined import split
from hpcfl.start.components.executors import make_executor
from tests.algorithms.facts import COHORT
from tests.algorithms.methods import ALL, SAMPLE, WHOLE
from tests.algorithms.play import Problem, parts, play, tree
from tests.algorithms.trace import trace
from tests.long_form import LONG


class Normed(nn.Sequential):
    """Batch normalisation of a hidden layer, which torch refuses for one example."""

    def __init__(self, input_shape, outputs, p=0.0):
        super().__init__(
            nn.Linear(input_shape[0], 5),
            nn.BatchNorm1d(5),
            nn.Tanh(),
            nn.Dropout(p),
            nn.Linear(5, outputs),
        )


class Images(nn.Sequential):
    """Of 2 x 2 places, so that a batch may be of one example; a layer that is used twice."""

    def __init__(self, input_shape, outputs):
        norm = nn.BatchNorm2d(2, momentum=0.3)
        conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        stem = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 3, padding=1, bias=False))
        first = (stem, norm, nn.ReLU(), conv, norm, conv)
        super().__init__(*first, nn.Dropout(0.3), nn.Flatten(), nn.Linear(8, outputs))


MODELS = {name: {"name": "module", "of": f"{__name__}.{name}"} for name in ("Normed", "Images")}
SIZES = (3, 8, 5, 12, 7, 1)
PAIRS = (3, 8, 6, 12, 7, 2)  # no batch of one example, in batches of four
SETTINGS = {
    "local": {"epochs": 2, "batch_size": 4, "lr": 0.3, "weight_decay": 0.05, "clip": 0.7},
    "cohort": {"kind": "replay", "rounds": [[0, 1, 2, 3, 4, 5], [5, 1], [], [2, 0, 3]]},
    "rounds": 4,
}
CARRIED = ["mean", "local"]
FROM_SERVER = {"mime", "mimeadam", "mimeliteadam", "mimelite", "mimelitemom", "mimemom", "mimemvr"}
REFUSE = {  # what the method does not go with
    **{name: {"local"} for name in FROM_SERVER | {"server_only"}},
    "ditto": {"mean", "local"},
    "dpfedavg": {"mean"},
    "fedbn": {"mean"},
}


def problem(sizes, seed=0):
    """Four features of far means, and of variances other than 1."""
    draw = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = 3 * draw.normal(size=(len(client), 4)) + 5 * draw.normal(size=(len(sizes), 4))[client]
    y = np.argmax(x @ draw.normal(size=(4, 3)), axis=1)
    y[:3] = [0, 1, 2]
    return Problem(x, y, client)


def job(folder, model="Images", carried="mean", algorithm=None, sizes=SIZES, **changes):
    settings = {**SETTINGS, **changes}
    own = {**MODELS[model], "statistics": carried}
    return tree(folder, problem(sizes), algorithm or {"name": "fedavg"}, model=own, **settings)


def statistics(found):
    """The server's after every round, and of every client after the last one."""
    servers = [server.statistics for server in found.servers if hasattr(server, "statistics")]
    last = [s.statistics for s in found.states[-1] if hasattr(s, "statistics")]
    return [*servers, *last]


def check_equal(one, other, tolerance=1e-12):
    np.testing.assert_allclose(one.xs, other.xs, rtol=0, atol=tolerance)
    for before, after in zip(one.states[-1], other.states[-1], strict=True):
        for a, b in zip(before or (), after or (), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)
    pairs = zip(statistics(one), statistics(other), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("carried", [*CARRIED, "frozen"])
@pytest.mark.parametrize(("model", "sizes"), [("Images", SIZES), ("Normed", PAIRS)])
def test_blocks_equal_one_client_after_the_other(folder, carried, model, sizes):
    """Padded batches, unequal steps, a batch of one, dropout, a layer that is used twice."""
    one, many = (
        trace(job(folder, model, carried, {"name": "fedsam"}, sizes, **how))
        for how in ({}, {"executor": "block", "block_size": 4})
    )
    check_equal(one, many)
    moved = statistics(one)
    assert bool(moved) == (carried != "frozen")
    assert not any(torch.equal(s, moved[0]) for s in moved[1:2])


def carries():
    """Each method with each that it goes with; in CI with one of the two in turn."""
    for number, name in enumerate(SAMPLE):
        keys = ALL[name]
        refused = {*CARRIED} if keys.get("option") == 1 else REFUSE.get(keys["name"], set())
        goes = [carried for carried in CARRIED if carried not in refused]
        for carried in goes if LONG else goes[number % len(CARRIED) :][:1] or goes[:1]:
            yield name, carried


@pytest.mark.parametrize(("name", "carried"), list(carries()))
def test_every_method_carries_them(folder, name, carried):
    keys = ALL[name]
    if "personal" in keys:
        keys = {**keys, "personal": ["1.bias"]}
    size = 1 if name == "centralized" else len(SIZES)
    whole = {"cohort": {"kind": "cyclic", "size": size}} if keys["name"] in WHOLE else {}
    one, many = (
        trace(job(folder, "Images", carried, keys, **whole, **how))
        for how in ({}, {"executor": "block", "block_size": min(4, size)})
    )
    check_equal(one, many, 1e-9)
    assert np.isfinite(one.xs).all()


class Torch:
    """What the job does, as a loop over clients in plain PyTorch."""

    def __init__(self, made, momentum):
        self.made, self.momentum = made, momentum
        self.kept = {}

    def start(self):
        model = Normed((4,), 3).double()
        nn.utils.vector_to_parameters(self.made.model.x0.clone(), model.parameters())
        return model

    def round(self, x, cohort, carried):
        """The state dict after a round from ``x``, weighted by the clients' examples."""
        uploads = {}
        data = problem(PAIRS)
        for i in cohort:
            model = self.start()
            model.load_state_dict(x)
            if carried == "local" and i in self.kept:
                model.load_state_dict(self.kept[i], strict=False)
            elif carried == "local":
                model[1].reset_running_stats()
            rows = data.rows(i)
            inputs, labels = torch.tensor(data.x[rows]), torch.tensor(data.y[rows])
            optimizer = torch.optim.SGD(
                model.parameters(), lr=0.1, momentum=self.momentum, weight_decay=0.05
            )
            model.train()
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            uploads[i] = {name: value.clone() for name, value in model.state_dict().items()}
            self.kept[i] = {n: v for n, v in uploads[i].items() if "running" in n}
        total = sum(PAIRS[i] for i in cohort)
        return {
            name: value
            if name.endswith("tracked") or (carried == "local" and "running" in name)
            else sum(PAIRS[i] * own[name] for i, own in uploads.items()) / total
            for name, value in x.items()
        }


@pytest.mark.parametrize("executor", ["sequential", "block"])
@pytest.mark.parametrize("carried", CARRIED)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_plain_program_gives_the_same(tmp_path, carried, momentum, executor):
    cohorts = [[0, 2, 3], [1, 2], [4, 5, 0]]
    settings = job(
        tmp_path,
        "Normed",
        carried,
        sizes=PAIRS,
        local={
            "epochs": 3,
            "batch_size": "full",
            "lr": 0.1,
            "momentum": momentum,
            "weight_decay": 0.05,
        },
        cohort={"kind": "replay", "rounds": cohorts},
        rounds=3,
        executor=executor,
    )
    plain = Torch(parts(tmp_path, settings), momentum)
    expected = plain.start().state_dict()
    for cohort in cohorts:
        expected = plain.round(expected, cohort, carried)
    path, near = play(tmp_path, settings).directory, 1e-14 if executor == "sequential" else 1e-12
    found = hpcfl.load_model(path).state_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=near, err_msg=name)
    if carried == "local":
        for i in range(6):
            own = hpcfl.load_model(path, client=i).state_dict()
            for name in ("1.running_mean", "1.running_var"):
                np.testing.assert_allclose(own[name], plain.kept[i][name], rtol=0, atol=near)


class Asks(FedAvg):
    """FedAvg that looks at other points of the batch, before and after its gradient."""

    def direction(self, point, local, grad, client):
        grad.forward(point + 1)
        d = grad(point)
        grad.forward(point - 1)
        grad(point + 2)
        grad(point * 3, lambda forward: forward.losses * 2)
        return d, local


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_the_first_gradient_of_a_step_alone_moves_them(folder, executor):
    plain, asking = (
        trace(job(folder, algorithm={"name": name}, executor=executor))
        for name in ("fedavg", f"{__name__}.Asks")
    )
    check_equal(plain, asking, 1e-14 if executor == "sequential" else 1e-12)


def test_two_points_of_a_step(folder):
    """FedSAM moves them at y, not at the point uphill; FedNTD's teacher moves nothing."""
    for name, off in (("fedsam", "rho"), ("fedntd", "beta")):
        found = trace(job(folder, algorithm={"name": name}, rounds=1))
        plain = trace(job(folder, algorithm={"name": name, off: 0.0}, rounds=1))
        assert not np.allclose(found.xs[-1], plain.xs[-1])
    one_step = {**SETTINGS["local"], "epochs": None, "steps": 1}
    sam, avg = (
        trace(job(folder, algorithm={"name": name}, rounds=1, local=one_step))
        for name in ("fedsam", "fedavg")
    )
    assert torch.equal(sam.servers[-1].statistics, avg.servers[-1].statistics)


class Evaluating(Normed):
    """Its batch normalisation is in evaluation mode by its own doing."""

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


def test_frozen_is_the_layer_in_evaluation_mode(folder):
    frozen = job(folder, "Normed", "frozen", sizes=PAIRS)
    own = {**frozen, "model": {"name": "module", "of": f"{__name__}.Evaluating"}}
    for executor in ("sequential", "block"):
        pair = [trace({**one, "executor": executor}) for one in (frozen, own)]
        assert (pair[0].xs == pair[1].xs).all()
        assert not hasattr(pair[0].servers[0], "statistics")


@pytest.mark.parametrize("carried", CARRIED)
def test_what_is_sent_and_kept(tmp_path, carried):
    made = parts(tmp_path, job(tmp_path, carried=carried))
    algorithm, schema = made.training.algorithm, made.training.schema
    size = made.model.x0.nbytes + (
        4 * 8 if carried == "mean" else 0
    )  # means and variances of 2 channels
    assert algorithm.down_bytes(schema.message) == algorithm.up_bytes(schema.upload) == size
    assert schema.client_state.bytes == (0 if carried == "mean" else 4 * 8)


def test_the_methods_own_numbers_are_in_the_log(tmp_path):
    found = play(tmp_path, job(tmp_path, algorithm={"name": "fedexp"}))
    assert all(line["server_eta_g"] >= 1 for line in found.log)


def test_a_round_without_clients_keeps_them(folder):
    """Also of a method that then updates by a mean of zeros."""
    found = trace(job(folder, algorithm={"name": f"{__name__}.Always"}))
    assert torch.equal(found.servers[2].statistics, found.servers[3].statistics)
    assert found.servers[3].statistics.any()


class Always(FedAvg):
    updates_without_clients = True


class Full(FedAvg):
    """A gradient descent by full gradients."""

    full_gradient = "client"

    def finish(self, y, local, message, state, client):
        return Upload(client.lr * client.full_grad), state


def test_full_gradients_are_those_of_the_module_in_evaluation_mode(tmp_path):
    settings = job(tmp_path, "Normed", "mean", {"name": f"{__name__}.Full"}, PAIRS)
    settings |= {"cohort": {"kind": "cyclic", "size": 6}, "rounds": 2, "weights": "uniform"}
    found, data = trace({**settings, "local": {"lr": 0.5}}), problem(PAIRS)
    model = Normed((4,), 3).double().eval()
    server = found.servers[1]
    nn.utils.vector_to_parameters(server.x, model.parameters())
    model[1].running_mean.copy_(server.statistics[:5])
    model[1].running_var.copy_(server.statistics[5:])
    grads = []
    for i in range(6):
        rows = data.rows(i)
        loss = nn.functional.cross_entropy(
            model(torch.tensor(data.x[rows])), torch.tensor(data.y[rows])
        )
        grads.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
        )
    step = 0.5 * torch.stack(grads).mean(0)
    np.testing.assert_allclose(found.servers[2].x, server.x - step, rtol=0, atol=1e-14)


class Wide(nn.Sequential):
    """Sizes that no vector of a processor divides."""

    def __init__(self, input_shape, outputs):
        super().__init__(
            nn.Unflatten(1, (2, 3, 9)),
            nn.Conv2d(2, 3, 2),
            nn.BatchNorm2d(3),
            nn.Flatten(),
            nn.Linear(48, 13),
            nn.BatchNorm1d(13),
            nn.Linear(13, outputs),
        )


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_clients_bits_do_not_depend_on_its_company(tmp_path, precision):
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(6), (3, 35, 20, 7, 40, 2))
    data = Problem(draw.normal(size=(107, 54)), np.arange(107) % 7, client)
    settings = tree(
        tmp_path, data, {"name": "fedavg"}, model={"name": "module", "of": f"{__name__}.Wide"}
    )
    settings |= {"local": {"epochs": 2, "batch_size": 33, "lr": 0.3}, "precision": precision}
    made = parts(tmp_path, {**settings, "executor": "block", "block_size": 4})
    executor = make_executor(made, made.gradient())
    message = made.training.algorithm.broadcast(
        made.training.algorithm.init_server(made.model.x0), COHORT
    )

    def go(clients):
        tasks = [made.population.clients.task(i, 0) for i in clients]
        trained = executor.train(message, tasks, [made.first_state(i) for i in clients])
        return dict(zip(clients, trained, strict=True))

    alone = {i: go([i])[i] for i in range(6)}
    for clients in [*permutations(range(3)), (5, 4, 3, 2, 1, 0), (3, 1, 4)]:
        for i, trained in go(clients).items():
            for one, other in zip(trained.upload, alone[i].upload, strict=True):
                assert torch.equal(one, other)


def test_a_messages_statistics_are_left_as_they_are(tmp_path):
    """Executors copy them before they move."""
    for executor in ("sequential", "block"):
        made = parts(tmp_path, job(tmp_path, executor=executor))
        server = made.training.algorithm.init_server(made.model.x0)
        message = made.training.algorithm.broadcast(server, COHORT)
        tasks = [made.population.clients.task(i, 0) for i in (0, 1)]
        before = message.statistics.clone()
        trained = make_executor(made, made.gradient()).train(
            message, tasks, [made.first_state(0)] * 2
        )
        assert torch.equal(message.statistics, before)
        assert not torch.equal(trained[0].upload.statistics, trained[1].upload.statistics)
        assert torch.equal(made.model.statistics.initial, before)
        assert split(message).tree == Message(made.model.x0)
