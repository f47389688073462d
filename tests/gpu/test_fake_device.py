"""Whole rounds on a fake GPU: no tensor of a wrong device, and the CPU's numbers.

``tests/gpu/fake_cuda.py`` says what is replaced: tensors of the device, pinned memory, and the
functions of ``torch.cuda``.  Nothing of hpcfl is replaced.
"""

import gc
import json
import warnings
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import hpcfl
from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.base import Message
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.clients import client_pool
from hpcfl.clients.client_states import ClientStates
from hpcfl.comm.base import P2PMessage
from hpcfl.comm.solo import Solo
from hpcfl.comm.staging import StagedExchange
from hpcfl.data.batches import order
from hpcfl.engine import loop as engine_loop
from hpcfl.engine.loop import run_rounds
from hpcfl.errors import JobError
from hpcfl.evaluation.clients import Clients
from hpcfl.evaluation.scores import Evaluation
from hpcfl.job.load import load
from hpcfl.local import cuda_graph
from hpcfl.local import lanes as lanes_module
from hpcfl.local.cuda_graph import WARMUP_CALLS, CudaGraphStep, capture
from hpcfl.models import MODELS
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log_keys import measured
from hpcfl.start.components.build import build_components
from hpcfl.tools.selftest import outcome
from tests.algorithms.methods import ENTRIES, SAMPLE
from tests.algorithms.play import local_for, model_for
from tests.gpu.fake_cuda import CUDA, _current, fake_cuda, is_fake
from tests.jobs.miniatures import CLIENTS, MAKERS, VOCABULARY
from tests.long_form import LONG, long_form
from timed_rounds import build_timed_run

EXECUTORS = ["sequential", "block", "lanes"]
# Blocks compute convolutions by other kernels on a GPU, and both pad batches.
TOLERANCE = {"sequential": 0.0, "block": 1e-5, "lanes": 1e-5}


@pytest.fixture(autouse=True)
def own_torch(determinism):
    """torch's switches and threads as they were."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Played(NamedTuple):
    """What some rounds leave behind, in memory."""

    server: list[Tensor]
    states: list[Tensor]
    log: list[Tensor]
    """All that is not measured: the losses, the traffic, the diagnostics."""


def rounds(path, device, folder, settings=()):
    """Play the rounds of a job on a device."""
    folder.mkdir()
    with ExitStack() as stack:
        built = build_timed_run(load(path, [f"device={device}", *settings]), folder, stack)
        run = built.run
        server = run_rounds(run, run.algorithm.init_server(run.x0), 0)
        leaves = tree_leaves(server)
        assert all(is_fake(leaf) == (device == "cuda") for leaf in leaves)
        read = [
            run.training.states.read(client)
            for client in range(len(built.components.population.rows))
        ]
        states = [leaf.cpu().clone() for state in read if state is not None for leaf in state]
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    log = [torch.tensor([line[key] for key in sorted(line) if not measured(key)]) for line in lines]
    return Played([leaf.cpu() for leaf in leaves], states, log)


def require_same(found, expected, tolerance):
    """Compare shapes, dtypes and values; nothing may still be on the device."""
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert type(a) is Tensor
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def require_cpus_numbers(folder, job, tolerance):
    """Play the job on the CPU and on the fake GPU; its results, and the calls of torch.cuda."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    on_cpu = ["executor=sequential", "block_size=null"] if job.get("executor") == "lanes" else []
    expected = rounds(path, "cpu", folder / "cpu", on_cpu)
    with fake_cuda() as gpu:
        found = rounds(path, "cuda", folder / "cuda")
    require_same(found, expected, tolerance)
    return found, gpu.calls


@pytest.fixture
def problem(tmp_path):
    """The data section of a small classification: 4 clients of 3 to 9 examples."""
    draw = np.random.default_rng(0)
    client = np.repeat(range(4), (3, 9, 5, 7))
    x = draw.standard_normal((len(client), 5)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(len(client)) % 3, client=client)
    return {"kind": "arrays", "path": str(tmp_path / "d.npz")}


def small_job(data, algorithm, **changes):
    pooled = {"partition": {"kind": "pooled"}} if algorithm["name"] == "centralized" else {}
    sizes = {"centralized": 1, "streaming_diloco": 4}
    cohort = {"kind": "cyclic", "size": sizes.get(algorithm["name"], 3)}
    return {
        "data": data | pooled,
        "model": model_for(algorithm),
        "cohort": cohort,
        "algorithm": dict(algorithm),
        "local": local_for(
            algorithm,
            {"epochs": 1, "batch_size": 4, "lr": 0.1, "weight_decay": 0.01, "lr_decay": 0.5},
        ),
        "weights": "uniform" if algorithm["name"] == "dpfedavg" else "examples",
        "rounds": 3,
        "block_size": 2 if changes.get("executor") in ("block", "lanes") and not pooled else None,
        **changes,
    }


METHODS = [*SAMPLE, *({"fedhbm-random"} - set(SAMPLE))]  # random first states are drawn there


def test_every_algorithm_is_played():
    assert {ENTRIES[name].keys["name"] for name in METHODS} == set(ALGORITHMS)


# One client after the other, as in lanes too, these call each hook; the others in the long form.
ONE_BY_ONE = [
    "fedavg",
    "scaffold-2",
    "mime",
    "fedsam",
    "fedntd",
    "fedrep",
    "ditto",
    "fedadamw",
    "qsgd",
    "streaming_diloco",
]


@pytest.mark.parametrize(
    ("method", "executor"),
    [
        *product(METHODS, ["block"]),
        *product(ONE_BY_ONE, ["sequential", "lanes"]),
        *(
            pytest.param(method, "sequential", marks=long_form)
            for method in METHODS
            if method not in ONE_BY_ONE
        ),
    ],
)
def test_algorithms(tmp_path, problem, method, executor):
    # In two rounds two clients come again, with their states.
    rounds = 3 if LONG else 2
    job = small_job(problem, ENTRIES[method].keys, executor=executor, rounds=rounds)
    _, calls = require_cpus_numbers(tmp_path, job, TOLERANCE[executor])
    # A block of two and one of one client, each of as many steps as its longest client.
    assert ("replay" in calls) == (executor != "sequential")


@pytest.mark.parametrize("most", [client_pool.MAX_INDICES, 0], ids=["ahead", "too many"])
def test_the_indices_of_the_next_round_are_made_while_the_gpu_trains(
    tmp_path, problem, monkeypatch, most
):
    """With the numbers of the CPU, where none are made ahead."""
    monkeypatch.setattr(client_pool, "MAX_INDICES", most)
    job = small_job(problem, {"name": "fedavg"}, executor="block")

    def noted(*args, **how):
        for gpu in _current:
            gpu.calls.append("order")
        return order(*args, **how)

    monkeypatch.setattr(client_pool, "order", noted)
    _, calls = require_cpus_numbers(tmp_path, job, TOLERANCE["block"])
    calls = [name for name in calls if name in ("order", "replay", "synchronize")]
    runs = [(name, len(list(same))) for name, same in groupby(calls)]
    made = [k for k, (name, _) in enumerate(runs) if name == "order"]
    # Blocks of two and of one client in the first round; later ones are not waited for.
    first, ahead = [2, 1], [3, 3]
    assert [runs[k][1] for k in made] == first + (ahead if most else first + first)
    for k in made[2:] if most else ():
        assert (runs[k - 1][0], runs[k + 1][0]) == ("replay", "synchronize")


class RandomDepth(nn.Module):
    """Skips a layer by a draw of torch's CPU generator, as many published models do."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.skipped, self.out = nn.Linear(5, 5), nn.Linear(5, outputs)

    def forward(self, x):
        if self.training and torch.rand(1).item() < 0.5:
            return self.out(x + 0 * self.skipped(x))
        return self.out(x + self.skipped(x))


def test_a_draw_of_the_cpus_generator_is_seeded(tmp_path, problem):
    model = {"name": "module", "of": f"{__name__}.RandomDepth"}
    require_cpus_numbers(tmp_path, small_job(problem, {"name": "fedavg"}, model=model), 0.0)


class Numbered(NamedTuple):
    delta: Tensor
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class SendsSteps(FedAvg):
    """Sends one of the client's numbers, which are on the CPU."""

    def finish(self, y, local, message, state, client):
        return Numbered(message.x - y, client.steps), state


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_number_of_the_client_is_an_upload(tmp_path, problem, executor):
    job = small_job(problem, {"name": f"{__name__}.SendsSteps"}, executor=executor)
    require_cpus_numbers(tmp_path, job, TOLERANCE[executor])


class Kept(NamedTuple):
    last: Tensor
    total: Tensor


class Normalised(nn.Sequential):
    def __init__(self, input_shape, outputs):
        layers = nn.Linear(*input_shape, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, outputs)
        super().__init__(*layers)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "momentum", "sgd"])
@pytest.mark.parametrize(
    ("executor", "room"),
    [("sequential", None), ("block", None), ("lanes", None), ("lanes", 1)],
)
def test_kept_states_and_rates_by_step(tmp_path, problem, monkeypatch, optimizer, executor, room):
    """A graph is replayed at another rate in every step; lanes get theirs with the batches."""
    if room is not None:
        monkeypatch.setattr(lanes_module, "ROUND_BYTES", room)  # a batch at a time
    schedule = {"kind": "cosine", "warmup": 4, "floor": 0.1}
    local = {"steps": 3, "batch_size": 4, "lr": 0.05, "step_schedule": schedule}
    if optimizer == "momentum":
        local |= {"momentum": 0.9, "keep_optimizer": True}
    elif optimizer != "sgd":
        local |= {"optimizer": optimizer, "keep_optimizer": True}
    job = small_job(problem, {"name": "fedavg"}, executor=executor, local=local)
    found, _ = require_cpus_numbers(tmp_path, job, 20 * TOLERANCE[executor])
    assert bool(found.states) == (optimizer != "sgd")


@pytest.mark.parametrize("method", ["fedavg", "fedsam", "fedbn"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_running_statistics(tmp_path, problem, method, executor):
    """The client of three examples has a padded batch."""
    model = {"name": "module", "of": f"{__name__}.Normalised"}
    local = {"epochs": 1, "batch_size": 4, "lr": 0.1, "drop_last": True}
    job = small_job(problem, {"name": method}, model=model, local=local, executor=executor)
    require_cpus_numbers(tmp_path, job, TOLERANCE[executor])


@dataclass(frozen=True, kw_only=True)
class KeepsPoints(FedAvg):
    """Keeps the model itself, which the step changes, and shows it to the next step."""

    def begin(self, message, state, client):
        return Kept(message.x, message.x)

    def direction(self, point, local, grad, client):
        return grad(point) + 0.1 * (point - local.last), Kept(point, local.total + local.last)

    def finish(self, y, local, message, state, client):
        return type(super().finish(y, local, message, state, client)[0])(local.total), state


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_hook_may_keep_the_model_that_a_step_changes(tmp_path, problem, executor):
    job = small_job(problem, {"name": f"{__name__}.KeepsPoints"}, executor=executor)
    require_cpus_numbers(tmp_path, job, TOLERANCE[executor])


@dataclass(frozen=True, kw_only=True)
class KeepsReceived(FedAvg):
    """Keeps the received model, which it has from its local quantities."""

    def init_client(self, x0, random_init):
        return Message(x0)

    def finish(self, y, local, message, state, client):
        return super().finish(y, local, message, state, client)[0], Message(local.x)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_received_model_is_kept_once_for_all_clients(tmp_path, problem, executor, monkeypatch):
    job = small_job(problem, {"name": f"{__name__}.KeepsReceived"}, executor=executor)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    save, same = ClientStates.save, []

    def noted(self, assignment, states, x):
        same.extend(state.x is x for state in states)
        save(self, assignment, states, x)

    monkeypatch.setattr(ClientStates, "save", noted)
    with fake_cuda():
        rounds(path, "cuda", tmp_path / "cuda")
    assert same
    assert all(same)


class TestLanes:
    @pytest.mark.parametrize("model", ["lenet", "cnn_pfl", "char_lstm"])
    def test_any_number_of_lanes_gives_the_same_bits(self, tmp_path, model, monkeypatch):
        """So that neither a slot nor another client changes a client's bits: the mean is exact.

        Also where the batches of one step alone have room.
        """
        job = model_job(model, tmp_path) | {
            "cohort": {"kind": "cyclic", "size": 3},
            "algorithm": {"name": "fedhbm"},
            "local": {"epochs": 1, "batch_size": 4, "lr": 0.05},
            "executor": "lanes",
        }
        path = tmp_path / "job.yaml"
        results = []
        for lanes, room in ((3, lanes_module.ROUND_BYTES), (1, 1), (2, 1)):
            monkeypatch.setattr(lanes_module, "ROUND_BYTES", room)
            path.write_text(yaml.safe_dump(job | {"block_size": lanes}))
            with fake_cuda():
                results.append(rounds(path, "cuda", tmp_path / f"out{lanes}"))
        first, *others = results
        for other in others:
            require_same(other, first, 0.0)

    def test_every_graph_is_captured_on_a_stream_of_its_own(self, tmp_path, problem):
        job = small_job(problem, {"name": "fedavg"}, executor="lanes", block_size=3)
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        with fake_cuda() as gpu:
            rounds(path, "cuda", tmp_path / "cuda")
        assert len(gpu.captured) == 3
        assert len(set(gpu.captured)) == 3
        assert gpu.main not in gpu.captured
        assert set(gpu.replayed) == set(gpu.captured)  # else no lane runs beside another

    def test_a_layer_that_draws_is_refused(self, tmp_path, problem):
        """A graph would repeat one draw in every step."""
        model = {"name": "module", "of": f"{__name__}.RandomDepth"}
        job = small_job(problem, {"name": "fedavg"}, model=model, executor="lanes")
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        with fake_cuda(), pytest.raises(JobError, match="lanes cannot train fedavg with module"):
            rounds(path, "cuda", tmp_path / "cuda")

    def test_there_are_as_many_as_streams(self, tmp_path, problem):
        data = {"kind": "quadratics", "clients": 40, "dim": 2}
        job = small_job(data, {"name": "fedavg"}, executor="lanes", block_size=33)
        job |= {"model": {"name": "point"}}
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        with fake_cuda(), pytest.raises(JobError, match="found 33, and 32 lanes are the most"):
            rounds(path, "cuda", tmp_path / "cuda")

    def test_a_cpu_has_none(self, tmp_path, problem):
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(small_job(problem, {"name": "fedavg"}, executor="lanes")))
        with pytest.raises(JobError, match="lanes on a CPU"):
            hpcfl.run(path, ["device=cpu"], out=tmp_path / "cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {"reduction": "fast"},
        {"precision": "float64"},
        {"precision": "bf16"},
        {"weights": "uniform", "store": {"dtype": "bfloat16"}},
        {
            "diagnostics": {
                "consistency": True,
                "drift": True,
                "dissimilarity": True,
            }
        },
    ],
    ids=str,
)
def test_other_settings(tmp_path, problem, changes):
    local = {"epochs": 1, "batch_size": 4, "lr": 0.1, "clip": 0.5}
    job = small_job(problem, {"name": "scaffold"}, executor="block", local=local, **changes)
    require_cpus_numbers(tmp_path, job, 1e-2 if "bf16" in str(changes) else 1e-5)


def test_float64_uploads_far_from_one_are_scaled_on_the_device(tmp_path):
    """Only such uploads are scaled before they become integers."""
    data = {"kind": "quadratics", "clients": 3, "dim": 4}
    job = small_job(data, {"name": "fedavg"}, precision="float64")
    job |= {"model": {"name": "point"}, "cohort": {"kind": "uniform", "size": 2}}
    job["local"] = {"steps": 1, "lr": 1e-290}
    found, _ = require_cpus_numbers(tmp_path, job, 0.0)
    assert 0 < found.server[0].abs().max() < 1e-280


TASKS = {
    "lenet": "cifar10-lenet",
    "cnn_pfl": "cifar10-cnn",
    "resnet20": "cifar10-resnet20",
    "resnet18": "cifar10-resnet18",
    "cnn_fedavg": "mnist-cnn",
    "logistic": "emnist-logistic",
    "linear": "digits",
    "point": "quadratics",
    "char_lstm": "shakespeare",
    "word_lstm": "stackoverflow",
    "mobilenet_v2": "inaturalist-mobilenetv2",
    "module": "digits",
}
LARGE = ("resnet18", "mobilenet_v2")

LONG_IN_BLOCKS = ("char_lstm", "cnn_pfl", "resnet20", *LARGE)
MODEL_CASES = [
    pytest.param(name, executor, marks=[long_form] if slow else [])
    for name in TASKS
    for executor in EXECUTORS
    for slow in [executor != "sequential" and name in LONG_IN_BLOCKS]
]


class OwnModel(nn.Sequential):
    """A model of a user's own, for ``model: {name: module}``."""

    def __init__(self, input_shape, outputs):
        super().__init__(nn.Linear(*input_shape, 8), nn.Tanh(), nn.Linear(8, outputs))


def model_job(name, root):
    """A job of few steps of a model on a miniature of its data, which this writes."""
    tree, large = {"task": TASKS[name], "data": {}, "model": {}}, name in LARGE
    if name == "module":
        tree["model"] = {"name": name, "of": f"{__name__}.{OwnModel.__name__}"}
    kind = tree["task"].split("-")[0]
    MAKERS[kind](root)
    if kind in ("digits", "quadratics"):
        tree["data"] = {"clients": CLIENTS} if kind == "digits" else {}
    else:
        tree["data"] = {"root": str(root)}
    if kind in ("cifar10", "mnist", "emnist"):
        tree["data"] |= {"clients": CLIENTS, "partition": {"kind": "iid"}}
    if kind in ("stackoverflow", "inaturalist"):
        tree["data"]["subset"] = True
    if kind == "stackoverflow":
        tree["data"] |= {"vocabulary": VOCABULARY, "max_examples": 2, "test_examples": 2}
        tree["model"] = {"hidden": 7, "embedded": 5, "projected": 6}
    if kind == "inaturalist":
        tree["data"] |= {"size": 32, "margin": 4}
    return tree | {
        "cohort": {"kind": "uniform", "size": 2},
        "algorithm": {"name": "localghb"},
        "local": {"steps": 1 if large else 2, "batch_size": 2, "lr": 0.01},
        "rounds": 1 if large else 2,
    }


def test_every_model_is_played():
    assert set(TASKS) == set(MODELS)


@pytest.mark.parametrize(("name", "executor"), MODEL_CASES)
def test_models(tmp_path, name, executor):
    """With the augmentation of their data, and dropout; mobilenet_v2 reads its data from a file."""
    job = model_job(name, tmp_path) | {"executor": executor}
    require_cpus_numbers(tmp_path, job, 0.0 if executor == "sequential" else 1e-4)


def test_no_warning_of_cudnn_about_the_weights_of_an_lstm(tmp_path):
    """It would come with every run of an LSTM, and no user could do anything about it."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(model_job("word_lstm", tmp_path) | {"device": "cuda"}))
    with fake_cuda():
        build_components(load(path), CUDA)
    text = "RNN module weights are not part of single contiguous chunk of memory."
    warnings.warn(text, stacklevel=1)


@pytest.mark.parametrize("algorithm", ["mime", "mimelite"])
def test_full_gradients_of_a_recurrent_layer(tmp_path, algorithm):
    job = model_job("char_lstm", tmp_path) | {"algorithm": {"name": algorithm}}
    require_cpus_numbers(tmp_path, job, 0.0)


def test_a_whole_run_with_checkpoints_and_evaluations(tmp_path):
    """As a user runs it: two rounds, then a resume for one more."""
    job = model_job("logistic", tmp_path) | {
        "algorithm": {"name": "fedhbm"},
        "evaluate": {
            "every": 1,
            "train": True,
            "clients": True,
            "local_models": True,
            "best": True,
        },
        "checkpoint": {"every": 1},
        "store": {"kind": "hdf5"},
        "executor": "block",
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    expected = hpcfl.run(path, ["device=cpu"], out=tmp_path / "cpu")
    with fake_cuda():
        hpcfl.run(path, ["device=cuda"], out=tmp_path / "cuda")
        found = hpcfl.resume(tmp_path / "cuda", ["rounds=3"])
    more = hpcfl.resume(tmp_path / "cpu", ["rounds=3"])
    torch.testing.assert_close(found.x, more.x, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found.x, expected.x)


class Killed(BaseException):
    """What no code of the run handles."""


@pytest.mark.parametrize("free", [0, 20_000, 1 << 35], ids=["none", "some", "all"])
@pytest.mark.parametrize("method", ["scaffold", "fedhbm", "ditto"])
def test_states_in_the_gpus_memory_are_lost_with_it(tmp_path, problem, method, free, monkeypatch):
    """A resume has those of the checkpoint; evaluations have the newest."""
    scored = {"personal": True} if method == "ditto" else {"local_models": method == "fedhbm"}
    job = small_job(problem, {"name": method}, evaluate={"every": 1, "clients": True, **scored})
    job |= {"rounds": 6, "checkpoint": {"every": 2}}
    path, run_round = tmp_path / "job.yaml", engine_loop.run_round
    path.write_text(yaml.safe_dump(job))
    hpcfl.run(path, ["device=cpu"], out=tmp_path / "cpu")
    expected = outcome(RunDir(tmp_path / "cpu"))
    for at in (1, 2, 5):

        def killed(run, server, t, values, at=at):
            if t == at:
                raise Killed
            return run_round(run, server, t, values)

        out = tmp_path / f"killed in {at}"
        with fake_cuda() as gpu:
            gpu.free = free
            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(engine_loop, "run_round", killed)
                hpcfl.run(path, ["device=cuda"], out=out)
            hpcfl.resume(out)
        assert outcome(RunDir(out)).differences(expected) == []


def copies_in_a_round(folder, problem, algorithm, **changes):
    """What is copied from the device, and to it, in the last of some rounds."""
    folder.mkdir()
    path = folder / "job.yaml"
    job = small_job(problem, algorithm, **{"executor": "block", "rounds": 8, **changes})
    path.write_text(yaml.safe_dump(job))
    with fake_cuda() as gpu, ExitStack() as stack:
        run = build_timed_run(load(path, ["device=cuda"]), folder, stack).run
        server = run_rounds(
            replace(run, schedule=replace(run.schedule, rounds=7)),
            run.algorithm.init_server(run.x0),
            0,
        )
        gpu.reads.clear()
        gpu.uploads.clear()
        run_rounds(run, server, 7)
        return [what for what in gpu.reads if "copy" in what], gpu.uploads


@pytest.mark.parametrize("method", ["scaffold", "fedhbm", "feddyn"])
def test_states_that_stay_on_the_gpu_are_not_copied(tmp_path, problem, method):
    expected = copies_in_a_round(tmp_path / "fedavg", problem, {"name": "fedavg"})
    assert expected[0] == []
    assert copies_in_a_round(tmp_path / method, problem, {"name": method}) == expected


@pytest.mark.parametrize("executor", ["block", "lanes"])
def test_the_numbers_of_all_clients_take_one_copy_to_the_device(tmp_path, problem, executor):
    one, three = (
        copies_in_a_round(
            tmp_path / f"{size}",
            problem,
            {"name": "fedavg"},
            executor=executor,
            block_size=size,
            cohort={"kind": "cyclic", "size": size},
        )[1]
        for size in (1, 3)
    )
    assert len(one) == len(three)
    assert (one.count((5, 1)), three.count((5, 3))) == (1, 1)
    assert () not in three


def top_label(outputs, labels):
    return (outputs.argmax(-1) == labels).double().reshape(len(labels), -1).mean(1)


def build_evaluation(path, device):
    """The evaluation of a job, whose local and personal models are the initial ones; this model."""
    parts = build_components(load(path, [f"device={device.type}"]), device)
    owned, x0 = range(len(parts.population.rows)), parts.model.x0
    models = [x0] * len(owned)
    clients = Clients(
        parts.population.clients, owned, parts.population.weights, lambda *_: x0, lambda *_: models
    )
    sets = {"test": parts.population.tests(), "validation": parts.population.validation()}
    how = parts.job.evaluate, parts.gradient(), parts.population.dataset
    return Evaluation(*how, sets, clients, Solo()), x0


@pytest.mark.parametrize("free", [1 << 35, 1], ids=["resident", "too large"])
@pytest.mark.parametrize("name", ["lenet", "word_lstm"])
def test_an_evaluation_reads_the_sums_of_all_batches_at_once(tmp_path, name, free):
    job = model_job(name, tmp_path)
    job["algorithm"] = {"name": "ditto"}  # the clients' own models are those of build_evaluation
    job["data"]["validation"] = {"share": 0.4, "of": "clients"}
    job["evaluate"] = {"batch_size": 2, "metrics": [f"{__name__}.top_label"], "train": True}
    job["evaluate"] |= dict.fromkeys(("clients", "local_models", "personal"), True)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    evaluation, x0 = build_evaluation(path, torch.device("cpu"))
    expected = evaluation.scores(x0, 1)
    with fake_cuda() as gpu:
        gpu.free = free
        evaluation, x0 = build_evaluation(path, CUDA)
        evaluation.scores(x0, 1)  # constants are copied to the device once
        gpu.reads.clear()
        gpu.uploads.clear()
        found = evaluation.scores(x0, 1)
    # Of the test set, the validation set, and the clients with three kinds of models.
    assert gpu.reads == ["tolist"] * 5
    images = [shape for shape in gpu.uploads if len(shape) > 1]
    # The sentences are in a file that is mapped into memory.
    assert bool(images) == (name == "word_lstm" or free == 1)
    # Padding is masked on a GPU, and left out on the CPU.
    assert found == (pytest.approx(expected, rel=1e-12) if name == "word_lstm" else expected)


class Tagger(nn.Module):
    """Logits of each of 6 words for every place of a text."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.table, self.out = nn.Embedding(6, 4), nn.Linear(4, outputs)

    def forward(self, words):
        return self.out(self.table(words))


def several_labels(labels, root):
    """The data and the model of a job of tokens, some of them padding, or of bits."""
    draw = np.random.default_rng(0)
    client = np.repeat(range(4), (3, 9, 5, 7))
    x, y = draw.integers(0, 6, (24, 5)), draw.integers(0, 6, (24, 5))
    y[draw.random((24, 5)) < 0.3] = -100
    data, model = {"integers": True, "padding": -100}, {"of": f"{__name__}.{Tagger.__name__}"}
    if labels == "bits":
        x, y = draw.standard_normal((24, 5)).astype(np.float32), draw.random((24, 3)) < 0.5
        data, model = {}, {"of": f"{__name__}.{OwnModel.__name__}"}
    np.savez(root / "several.npz", x=x, y=y, client=client, x_test=x[::2], y_test=y[::2])
    data |= {"kind": "arrays", "path": str(root / "several.npz")}
    return {"data": data, "model": model | {"name": "module"}}


@pytest.mark.parametrize(("labels", "executor"), [*product(("tokens", "bits"), EXECUTORS)])
def test_several_labels_of_an_example(tmp_path, labels, executor):
    job = small_job({}, {"name": "mime"}, executor=executor) | several_labels(labels, tmp_path)
    job["evaluate"] = {"batch_size": 5, "train": True, "clients": True}
    require_cpus_numbers(tmp_path, job, TOLERANCE[executor])
    evaluation, x0 = build_evaluation(tmp_path / "job.yaml", torch.device("cpu"))
    expected = evaluation.scores(x0, 1)
    with fake_cuda():
        evaluation, x0 = build_evaluation(tmp_path / "job.yaml", CUDA)
        found = evaluation.scores(x0, 1)
    assert found == pytest.approx(expected, rel=1e-6)
    assert {"tokens": "test_perplexity", "bits": "client_f1_mean"}[labels] in found


def test_sent_states_are_staged_on_the_device():
    """As for NCCL, which sends from the device."""
    with fake_cuda():
        target = torch.zeros(3)
        sent = P2PMessage(1, torch.ones(3))
        staged = StagedExchange([sent], [P2PMessage(1, target)], CUDA)
        (_, data), (_, buffer) = *staged.sent, *staged.received
        assert data.device == buffer.device == CUDA
        buffer.copy_(data)
        staged.deliver()
    assert target.tolist() == [1, 1, 1]


class TestTheDeviceItself:
    """The fake refuses what a GPU refuses: else the tests above could not fail."""

    def test_streams_wait_for_each_other_or_are_refused(self):
        with fake_cuda():
            lane, main = torch.cuda.Stream(), torch.cuda.current_stream()
            x = torch.ones(2).to("cuda")
            graph = capture(lambda: x.add_(1), (), lane).graph
            x.zero_()
            with torch.cuda.stream(lane), pytest.raises(RuntimeError, match="does not wait"):
                graph.replay()
            lane.wait_stream(main)
            with torch.cuda.stream(lane):
                graph.replay()
            with pytest.raises(RuntimeError, match="was not waited for"):
                x.clone()
            main.wait_stream(lane)
            assert x.tolist() == [1, 1]

    def test_tensors_of_two_devices(self):
        with fake_cuda():
            x = torch.ones(3).to("cuda")
            assert (x * torch.tensor(2.0)).device == CUDA  # a 0-d CPU tensor is a number
            with pytest.raises(RuntimeError, match=r"the same device: aten\.mul"):
                x * torch.ones(3)
            with pytest.raises(RuntimeError, match=r"the same device: aten\.stack"):
                torch.stack([x.sum(), torch.tensor(2.0)])
            with pytest.raises(TypeError, match="can't convert cuda:0"):
                x.numpy()

    def test_a_copy_into_pinned_memory_arrives_with_the_stream(self):
        with fake_cuda():
            pinned = torch.empty(2, pin_memory=True)
            pinned.copy_(torch.ones(2).to("cuda"), non_blocking=True)
            assert pinned.tolist() != [1, 1]
            torch.cuda.current_stream().synchronize()
            assert pinned.tolist() == [1, 1]

    def test_pinned_memory_is_read_until_the_host_waits(self):
        with fake_cuda() as gpu:
            pinned = torch.ones(2).pin_memory()
            for copy in (
                lambda: pinned.to("cuda", non_blocking=True),
                lambda: torch.zeros(2, device="cuda").copy_(pinned, non_blocking=True),
            ):
                x = copy()
                assert x.tolist() == [1, 1]
                pinned.zero_()  # it has been read
                assert x.tolist() == [1, 1]
                x = copy()
                pinned.fill_(1)
                with pytest.raises(RuntimeError, match="overwritten before the device had read"):
                    x.tolist()
                gpu.read.clear()

    def test_copies_to_the_device_are_counted(self):
        with fake_cuda() as gpu:
            x = torch.ones(2).to("cuda")
            x.copy_(torch.zeros(2))
            x.copy_(x + 1)
            x.copy_(torch.zeros(()), non_blocking=True)
        assert gpu.uploads == [(2,), (2,), ()]

    def test_the_other_gpu_is_refused(self):
        with fake_cuda(2):
            torch.cuda.set_device(torch.device("cuda", 1))
            assert torch.ones(1, device="cuda").device == torch.device("cuda", 1)
            for make in (lambda: torch.ones(1, device=CUDA), lambda: torch.ones(1).to(CUDA)):
                with pytest.raises(RuntimeError, match="a tensor on cuda:0, and cuda:1 is in use"):
                    make()

    def test_a_capture_refuses_what_its_stream_has_not_run(self, monkeypatch):
        """Libraries would choose kernels and allocate there; that another stream ran it is no help.

        So a warm-up on another stream is noticed.
        """
        warm_up = cuda_graph._warm_up
        monkeypatch.setattr(
            cuda_graph, "_warm_up", lambda step, trees, _: warm_up(step, trees, torch.cuda.Stream())
        )
        with fake_cuda(), pytest.raises(RuntimeError, match="a stream that has not run it before"):
            CudaGraphStep(lambda x: x * 2)(torch.ones(2).to("cuda"))

    def test_a_graph_computes_only_when_it_is_replayed(self):
        with fake_cuda() as gpu:
            step = CudaGraphStep(lambda x, y: (x @ y, (x + 1).relu_()))
            inputs = [torch.eye(2).to("cuda"), torch.ones(2).to("cuda")]
            first = step(*inputs)
            kept = first[0].clone()
            inputs[1] = inputs[1] * 3
            again = step(*inputs)
            assert again[0] is first[0]  # overwritten
            assert again[0].tolist() == [3, 3]
            assert again[1].tolist() == [[2, 1], [1, 2]]
            assert kept.tolist() == [1, 1]
        around = ["wait_stream", "side stream", "main stream", "wait_stream"]
        assert gpu.calls == [*around, "synchronize", "capture", "replay", "replay"]

    def test_an_owner_of_a_graph_is_freed_with_its_last_name(self):
        """The garbage collector, which might run in the capture of another graph, is not needed."""

        class Owner:
            def __init__(self):
                self.step = CudaGraphStep(self.function)

            def function(self, x):
                enabled.append(gc.isenabled())
                return 2 * x

        enabled = []
        with fake_cuda():
            owner = Owner()
            assert owner.step(torch.ones(1).to("cuda")).tolist() == [2]
            freed = weakref.ref(owner)
            del owner
            assert freed() is None
        assert enabled == [True] * WARMUP_CALLS + [False]
        assert gc.isenabled()

    def test_a_capture_bakes_a_cpu_tensor(self):
        with fake_cuda():
            step = CudaGraphStep(lambda x: x * number)
            number = torch.tensor(2.0)
            first = step(torch.ones(1).to("cuda")).tolist()
            number = torch.tensor(3.0)
            assert step(torch.ones(1).to("cuda")).tolist() == first == [2]

    @pytest.mark.parametrize(
        "step",
        [
            lambda x: x * float(x.sum()),
            lambda x: x.cpu().to("cuda"),
            lambda x: x[x > 0],
        ],
        ids=["read", "copied", "counted"],
    )
    def test_a_capture_refuses_what_it_could_not_replay(self, step):
        with fake_cuda() as runtime:
            with pytest.raises(RuntimeError, match="stream is capturing"):
                CudaGraphStep(step)(torch.ones(2).to("cuda"))
            assert runtime.calls[-1] == "set_stream"  # torch leaves the capture's stream current
