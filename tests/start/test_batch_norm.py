"""Models with batch normalisation in whole runs: their checkpoints, files, scores and refusals."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hpcfl as package
from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from tests.vision import torchvision

pytestmark = pytest.mark.usefixtures("own_process")


class Normed(nn.Sequential):
    def __init__(self, input_shape, outputs, momentum=0.1):
        norm = nn.BatchNorm1d(5, momentum=momentum)
        super().__init__(nn.Linear(input_shape[0], 5), norm, nn.Tanh(), nn.Linear(5, outputs))


class Instances(nn.Sequential):
    def __init__(self, outputs):
        norm = nn.InstanceNorm1d(1, track_running_stats=True)
        super().__init__(nn.Unflatten(1, (1, 3)), norm, nn.Flatten(), nn.Linear(3, outputs))


class Synced(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(nn.SyncBatchNorm(3), nn.Linear(3, outputs))


class Grouped(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(
            nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Linear(4, outputs)
        )


class Untracked(nn.Sequential):
    def __init__(self, outputs):
        norm = nn.BatchNorm1d(4, track_running_stats=False)
        super().__init__(nn.Linear(3, 4), norm, nn.Linear(4, outputs))


def of(kind, **keys):
    return {"name": "module", "of": f"{__name__}.{kind}", **keys}


FEDAVG = {"name": "fedavg"}
EVALUATED = {"every": 1, "personal": True, "clients": True, "best": True}


@pytest.fixture
def play(job, tmp_path):
    def go(model="Normed", statistics=None, **settings):
        keys = {} if statistics is None else {"statistics": statistics}
        made = of(model, **keys) if isinstance(model, str) else model
        changes = {"model": made, "algorithm": FEDAVG, **settings}
        return package.run(job, changes, out=tmp_path / f"run{len(list(tmp_path.iterdir()))}")

    return go


def log(result):
    lines = (result.directory / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def scores(model, arrays, dtype):
    """Loss and accuracy of the test set."""
    inputs, labels = (torch.tensor(arrays[key]) for key in ("x_test", "y_test"))
    with torch.no_grad():
        outputs = model(inputs.to(dtype))
    right = (outputs.argmax(1) == labels).double().mean()
    return float(nn.functional.cross_entropy(outputs, labels)), float(right)


@pytest.mark.parametrize("precision", ["float32", "float64", "bf16"])
@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_the_modules_that_come_back_are_those_that_were_scored(
    play, arrays, tmp_path, precision, executor
):
    modules = {}

    class Keeps(package.Callback):
        def round(self, record, model):
            modules[record["round"]] = model.module()
            assert model.vector().numel() == 54

    evaluate = {"every": 1, "best": True}
    changes = {"precision": precision, "executor": executor, "evaluate": evaluate}
    if executor == "block":
        changes["block_size"] = 2
    result = package.run(
        tmp_path / "job.yaml",
        {"model": of("Normed"), "algorithm": FEDAVG, **changes},
        out=tmp_path / "run",
        callbacks=[Keeps()],
    )
    with np.load(arrays()) as data:
        given = dict(data)
    logged = {line["round"]: line for line in log(result)}
    dtype = torch.float64 if precision == "float64" else torch.float32
    near = {"float64": 1e-12, "float32": 1e-5, "bf16": 0.05}[precision]
    for round, module in modules.items():
        assert scores(module, given, dtype)[0] == pytest.approx(
            logged[round]["test_loss"], abs=near
        )
    last = package.load_model(result.directory)
    for module in (modules[4], last):  # no buffers that share memory, which safetensors refuses
        save_file(module.state_dict(), tmp_path / "module.safetensors")
    for name, value in modules[4].state_dict().items():
        assert torch.equal(last.state_dict()[name], value), name
    assert last.state_dict()["1.running_mean"].any()
    assert result.x.numel() == 54
    best = package.load_model(result.directory, best=True)
    losses = {round: line["test_accuracy"] for round, line in logged.items()}
    assert scores(best, given, dtype)[1] == pytest.approx(max(losses.values()))


def test_files_of_an_export(play, hpcfl, tmp_path):
    root = play(statistics="mean", evaluate={"every": 1, "best": True}).directory
    npz, file = tmp_path / "x.npz", tmp_path / "x.safetensors"
    for options in ([], ["--best"]):
        assert hpcfl("export", root, *options, "-o", npz, "--state-dict", file).code == 0
        with np.load(npz) as arrays:
            assert arrays["x"].shape == (54,)
            named = load_file(file)
            both = torch.cat([named["1.running_mean"], named["1.running_var"]])
            assert np.array_equal(arrays["statistics"], both)
    again = play(rounds=1, model=of("Normed", init=str(file)))
    first = load_file(again.directory / "buffers.safetensors")
    assert torch.equal(first["1.running_mean"], named["1.running_mean"])


def test_local_statistics_are_the_clients_own(play, hpcfl, arrays, tmp_path):
    result = play(statistics="local", evaluate=EVALUATED, cohort={"kind": "cyclic", "size": 3})
    root, file = result.directory, tmp_path / "x.safetensors"
    whole, own = package.load_model(root), [package.load_model(root, client=i) for i in range(4)]
    assert not whole[1].running_mean.any()
    assert (whole[1].running_var == 1).all()
    means = [model[1].running_mean for model in own]
    assert all(mean.any() for mean in means)
    assert not torch.equal(means[0], means[1])
    assert all(torch.equal(model[0].weight, whole[0].weight) for model in own)
    assert hpcfl("export", root, "--client", 2, "--state-dict", file).code == 0
    assert torch.equal(load_file(file)["1.running_mean"], means[2])
    rows = build_components(load(root / "job.yaml"), torch.device("cpu")).population.rows
    with np.load(arrays()) as data, torch.no_grad():
        losses = [
            nn.functional.cross_entropy(
                own[i](torch.tensor(data["x"][rows[i]]).float()),
                torch.tensor(data["y"][rows[i]]),
                reduction="none",
            )
            for i in range(4)
        ]
    assert log(result)[-1]["personal_loss"] == pytest.approx(float(torch.cat(losses).mean()))


@pytest.mark.parametrize("statistics", ["mean", "local", "frozen"])
def test_a_resume_goes_on_with_the_same_bits(play, job, tmp_path, statistics):
    whole = play(statistics=statistics, evaluate=EVALUATED | {"personal": {"steps": 2}})
    half = package.resume(whole.directory, round=2, out=tmp_path / "half")
    assert torch.equal(half.x, whole.x)
    pair = [package.load_model(result.directory).state_dict() for result in (whole, half)]
    assert all(torch.equal(pair[0][name], pair[1][name]) for name in pair[0])
    assert [
        {k: v for k, v in line.items() if "loss" in k or "accuracy" in k} for line in log(half)
    ] == [{k: v for k, v in line.items() if "loss" in k or "accuracy" in k} for line in log(whole)]


def test_a_branch_keeps_them(play, tmp_path):
    whole = play(statistics="mean", algorithm={"name": "fedavgm"})
    branch = package.resume(
        whole.directory, {"algorithm.beta": 0.5}, round=2, out=tmp_path / "branch"
    )
    assert not torch.equal(branch.x, whole.x)


@pytest.mark.parametrize("statistics", ["mean", "local"])
def test_every_score_and_diagnostic(play, statistics):
    diagnostics = {"consistency": True, "drift": True, "dissimilarity": True}
    evaluate = EVALUATED | {"local_models": True, "train": True}
    found = log(
        play(
            statistics=statistics,
            algorithm={"name": "fedhbm"},
            diagnostics=diagnostics,
            evaluate=evaluate | {"personal": {"steps": 3}},
        )
    )
    assert {"local_model_accuracy_mean", "personal_accuracy", "dissimilarity_g2"} <= set(found[-1])


def test_no_round_counts_batches(play):
    """Nothing depends on num_batches_tracked, which two ranks would count differently."""
    model = package.load_model(play().directory)
    assert int(model[1].num_batches_tracked) == 0


def test_a_module_that_was_made_before(job, tmp_path):
    made = Normed((3,), 4)
    made[1].running_mean += 2
    result = package.run(
        job, {"model.statistics": "frozen", "algorithm": FEDAVG}, model=made, out=tmp_path / "run"
    )
    assert (result.model()[1].running_mean == 2).all()


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_torchvisions_resnet18(job, arrays, tmp_path, executor):
    package_of = torchvision().models.resnet18
    draw = np.random.default_rng(0)
    images = draw.standard_normal((8, 3, 32, 32), dtype=np.float32)
    path = arrays(
        "images.npz", x=images, y=np.arange(8) % 4, x_test=images[:4], y_test=np.arange(4)
    )
    model = {
        "name": "module",
        "of": "torchvision.models.resnet18",
        "arguments": {"num_classes": 10},
    }
    changes = {"model": model, "data.path": str(path), "data.clients": 2, "rounds": 1}
    changes |= {"algorithm": FEDAVG, "executor": executor, "local": {"lr": 0.01, "batch_size": 2}}
    result = package.run(job, changes, out=tmp_path / "run")
    found = package.load_model(result.directory).state_dict()
    assert found.keys() == package_of(num_classes=10).state_dict().keys()
    assert found["layer4.1.bn2.running_mean"].any()


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_statistics_that_are_not_tracked(play, executor):
    """A model that normalises by each batch, in evaluations too, needs nothing carried."""
    size = {"block_size": 2} if executor == "block" else {}
    result = play("Untracked", executor=executor, **size)
    assert not (result.directory / "buffers.safetensors").exists()
    assert log(result)[-1]["test_loss"] < 2


@pytest.mark.parametrize("model", ["Normed", "Grouped"])
def test_fedbn_keeps_the_normalisation_with_the_client(play, model):
    result = play(model, algorithm={"name": "fedbn"}, evaluate={"personal": True, "every": 2})
    whole, own = (package.load_model(result.directory, **c) for c in ({}, {"client": 0}))
    for name, value in own.named_parameters():
        normed = name.startswith("1.") or (model == "Grouped" and name.startswith("2."))
        assert torch.equal(value, whole.get_parameter(name)) != normed, name


LAST = {"local.batch_size": 3}  # of ten examples
ONE = (
    "local.batch_size: found 3, with which client 0 (examples: 10) has a batch of one example, and "
    "batch normalisation needs two values of a channel; set another one, or local.drop_last=true"
)
REFUSED = {
    "no statistics": (
        {"model": {"name": "linear", "statistics": "mean"}},
        "model.statistics: found mean, but the model has no running statistics; remove it",
    ),
    "unknown": (
        {"model": of("Normed", statistics="global")},
        "model.statistics: found 'global', expected 'mean', 'local' or 'frozen'",
    ),
    "momentum": (
        {"model": of("Normed", arguments={"momentum": None})},
        "model.name: module: its layer '1' (BatchNorm1d) has momentum=None, a mean over all "
        "batches, expected a number; set its momentum (torch's is 0.1), or model.statistics=frozen",
    ),
    "instances": (
        {"model": of("Instances")},
        "model.name: module: its layer '1' (InstanceNorm1d) keeps running statistics, expected "
        "those of BatchNorm1d, 2d or 3d alone; use one, or set model.statistics=frozen",
    ),
    "synced": ({"model": of("Synced")}, "its layer '0' (SyncBatchNorm) keeps running statistics"),
    "ditto": (
        {"model": of("Normed"), "algorithm": {"name": "ditto"}},
        "algorithm.name: ditto has two models of a client, and one set of running statistics; set "
        "model.statistics=frozen",
    ),
    "ditto, local": (
        {"model": of("Normed", statistics="local"), "algorithm": {"name": "ditto"}},
        "ditto has two models of a client",
    ),
    "dpfedavg": (
        {
            "model": of("Normed"),
            "algorithm": {"name": "dpfedavg", "clip": 1.0, "noise": 1.0},
            "weights": "uniform",
        },
        "algorithm.name: dpfedavg would send running statistics without noise; set "
        "model.statistics=local, or frozen",
    ),
    "mime": (
        {"model": of("Normed", statistics="local"), "algorithm": {"name": "mime"}},
        "model.statistics: mime does not go with local (its full gradients are taken by the "
        "statistics of the server); set it to mean or frozen",
    ),
    "fedbn": (
        {"model": of("Normed", statistics="mean"), "algorithm": {"name": "fedbn"}},
        "algorithm.name: fedbn keeps each client's own running statistics; set "
        "model.statistics=local, or frozen",
    ),
    "fedbn without": (
        {"algorithm": {"name": "fedbn"}},
        "algorithm.name: fedbn keeps the weights and biases of normalisation layers, and this "
        "model trains none; set algorithm.name to fedavg or fedper",
    ),
    "one": ({"model": of("Normed"), **LAST}, ONE),
    "one, untracked": ({"model": of("Untracked"), **LAST}, ONE),
    "one each": ({"model": of("Normed"), "local.batch_size": 1}, "channel; set a larger one"),
    "one in all": (
        {"model": of("Normed"), "data.clients": 40, "cohort.size": 2},
        "client 0 (examples: 1) has a batch of one example, and batch normalisation needs two "
        "values of a channel; give every client two examples at least",
    ),
    "one, tuned": (
        {"model": of("Normed"), **LAST, "local.steps": 3, "evaluate.personal": {"steps": 4}},
        ONE,
    ),
    "one, blocks": ({"model": of("Normed"), "executor": "block", "block_size": 2, **LAST}, ONE),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_before_round_1(what, job, tmp_path):
    changes, said = REFUSED[what]
    with pytest.raises(package.errors.JobError) as refused:
        package.run(job, {"algorithm": FEDAVG, **changes}, out=tmp_path / "run")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    "local",
    [
        {"drop_last": True, "batch_size": 3},
        {"batch_size": 4},
        {"batch_size": 3, "steps": 3},  # ends before the batch of one
        {"batch_size": 3, "epochs": 1, "drop_last": True},
    ],
)
def test_batches_that_no_client_has_are_not_refused(play, local):
    play(local={"lr": 0.1, **local})


@pytest.mark.parametrize("model", ["Instances", "Synced", "Normed"])
def test_whatever_is_frozen_may_be_of_any_kind(play, model):
    result = play(model, statistics="frozen", **LAST)
    assert all(
        not value.any() for n, value in result.model().state_dict().items() if "running_mean" in n
    )


def test_a_field_of_the_users_own_of_that_name(job, refused, tmp_path, monkeypatch):
    (tmp_path / "own_field.py").write_text(
        "from typing import NamedTuple\n"
        "from torch import Tensor\n"
        "from hpcfl.algorithms.fedavg import FedAvg\n"
        "class Server(NamedTuple):\n    x: Tensor\n    statistics: Tensor\n"
        "class Own(FedAvg):\n"
        "    def init_server(self, x0):\n        return Server(x0, x0)\n"
        "    def update(self, server, mean, cohort):\n"
        "        return Server(server.x - mean.delta, server.statistics)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = ("algorithm.name=own_field.Own", f"model={{name: module, of: {__name__}.Normed}}")
    line = refused(
        "run", job, "algorithm={name: own_field.Own}", settings[1], "--out", tmp_path / "r"
    )
    assert "Server has a field statistics, which hpcfl adds for a model with batch norm" in line


def test_the_plan_and_the_check_count_them(job, hpcfl):
    own = f"model={{name: module, of: {__name__}.Normed}}"
    done = hpcfl("check", "--data", job, "algorithm={name: fedavg}", own)
    assert "54, 10 running statistics (mean)" in done.text
    assert "256 bytes down, 256 bytes up per client and round" in done.text
    assert hpcfl("plan", job, "algorithm={name: fedavg}", own).code == 0


def test_a_warm_start_sends_them_too(play):
    """64 and 54 numbers of 4 bytes, to and from four clients."""
    found = log(play(algorithm={"name": "scaffold", "first": "gradient"}))[0]
    assert (found["down_bytes"], found["up_bytes"]) == (4 * 64 * 4, 4 * 54 * 4)
