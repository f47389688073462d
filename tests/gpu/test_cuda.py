"""What needs a GPU: the same jobs as elsewhere, on the device and over NCCL."""

from functools import partial

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import nn

import hpcfl
from gpu_jobs import Subject, random_job
from hpcfl.clients.padded_batches import PaddedBatches
from hpcfl.job.load import load
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.models import MODELS
from hpcfl.runs.job_file.yaml_file import as_override
from hpcfl.start.components.build import build_components
from peers import BenchWork
from tests.gpu.launch import on_ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

JOB = """
data: {kind: digits, clients: 10, partition: {kind: dirichlet, alpha: 0.0}}
model: {name: linear}
cohort: {kind: uniform, size: 4}
algorithm: {name: fedhbm}
local: {epochs: 1, batch_size: 16, lr: 0.1}
rounds: 5
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_a_gpu_gives_the_same_bits_twice_and_the_cpus_model(tmp_path, job):
    first, again = (hpcfl.run(job, ["device=cuda"], out=tmp_path / name) for name in ("a", "b"))
    cpu = hpcfl.run(job, ["device=cpu"], out=tmp_path / "cpu")
    assert torch.equal(first.x, again.x)
    torch.testing.assert_close(first.x, cpu.x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["fedhbm", "scaffold"])
def test_states_in_the_gpus_memory_change_no_bit(tmp_path, job, method):
    """Nor does a resume, whose states are those of the disk."""
    words = ["device=cuda", f"algorithm={{name: {method}}}"]
    kept = hpcfl.run(job, [*words, "rounds=12"], out=tmp_path / "kept")
    gone = hpcfl.run(job, [*words, "rounds=12", "store.cache_gib=0"], out=tmp_path / "gone")
    hpcfl.run(job, [*words, "rounds=7"], out=tmp_path / "resumed")
    resumed = hpcfl.resume(tmp_path / "resumed", ["rounds=12"])
    assert torch.equal(kept.x, gone.x)
    assert torch.equal(kept.x, resumed.x)


def images(tmp_path):
    """Files of a small CIFAR-10, and the data section of a job."""
    draw = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 24), ("test", 8)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = draw.integers(0, 10, count)
    np.savez(tmp_path / "cifar10.npz", **arrays)
    return {"kind": "cifar10", "root": str(tmp_path), "clients": 3}


def test_augmented_batches_are_the_same_on_a_gpu_alone_and_in_a_block(tmp_path):
    job = {
        "data": images(tmp_path),
        "model": {"name": "linear"},
        "cohort": {"kind": "uniform", "size": 2},
        "algorithm": {"name": "fedavg"},
        "local": {"batch_size": 3, "lr": 0.01},
        "rounds": 1,
    }
    gpu, cpu = (
        build_components(load(job), torch.device(name)).population.clients
        for name in ("cuda:0", "cpu")
    )
    filling = PaddedBatches(4, 3, gpu.block_batches())
    alone = [list(made.task(client, 0).batches) for made in (gpu, cpu) for client in range(3)]
    for step, batches in enumerate(filling.steps([gpu.task(i, 0) for i in range(3)])):
        for k in range(3):
            there, here = alone[k][step], alone[3 + k][step]
            own = len(here.labels)
            assert torch.equal(there.inputs.cpu(), here.inputs)
            assert torch.equal(batches.inputs[k, :own].cpu(), here.inputs)
            assert torch.equal(batches.labels[k, :own].cpu(), here.labels)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("norm", ["group", "frozen"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_deep_models_give_the_same_bits_twice(tmp_path, name, norm, precision):
    data = images(tmp_path)
    weights = tmp_path / "weights.safetensors"
    model = {"norm": norm, "init": str(weights) if norm == "frozen" else None}
    save_file(MODELS[name](**model).build((3, 32, 32), 10).state_dict(), weights)
    job = {
        "data": data,
        "model": {"name": name, **model},
        "cohort": {"kind": "uniform", "size": 2},
        "algorithm": {"name": "fedavg"},
        "local": {"batch_size": 4, "lr": 0.01},
        "rounds": 2,
        "precision": precision,
        "device": "cuda",
    }
    first, again = (hpcfl.run(job, out=tmp_path / out) for out in ("a", "b"))
    assert torch.equal(first.x, again.x)


def test_nccl_on_one_rank(tmp_path, job):
    alone = hpcfl.run(job, ["device=cuda"], out=tmp_path / "alone")
    out = tmp_path / "nccl"
    start = partial(on_ranks, 1, "-m", "hpcfl")
    done = start("run", str(job), "comm.backend=nccl", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "by nccl on cuda" in done.stderr
    npz = tmp_path / "x.npz"
    assert start("export", str(out), "-o", str(npz)).returncode == 0
    assert np.array_equal(np.load(npz)["x"], alone.x.numpy())


WORK = BenchWork(users=9, samples=21, cohort=7, batch=5, rate=0.02)
ON_RANKS = [
    ("linear", "float32", {"algorithm": {"name": "fedhbm"}}),
    ("linear", "bf16", {"algorithm": {"name": "scaffold"}}),
    ("cnn", "float32", {}),
    ("lenet", "float32", {"algorithm": {"name": "mime"}}),
    ("lenet", "tf32", {}),
    ("lenet", "bf16", {}),
    ("lenet", "float32", {"local.clip": 0.1}),
    ("lenet", "float32", {"algorithm": {"name": "mofedsam"}}),
    ("resnet20", "float32", {}),
    ("resnet20", "bf16", {"local.clip": 0.1}),
    ("char_lstm", "float32", {}),
    ("char_lstm", "bf16", {"algorithm": {"name": "fedsam"}}),
]
BY_TRITON = [  # a model with each kernel, in each precision
    ("lenet", "tf32", {"algorithm": {"name": "fedhbm"}}),
    ("resnet20", "float32", {}),
    ("resnet20", "bf16", {"local.clip": 0.1}),
    ("char_lstm", "tf32", {"algorithm": {"name": "fedsam"}}),
]


@pytest.mark.parametrize(
    ("executor", "model", "precision", "settings"),
    [
        *((name, *case) for name in ("sequential", "block", "lanes") for case in ON_RANKS),
        *(("triton", *case) for case in BY_TRITON),
    ],
)
def test_two_ranks_on_one_gpu_have_the_same_bits(tmp_path, executor, model, precision, settings):
    """In a block, a client has another place on two ranks than on one."""
    job = random_job(tmp_path, Subject(model, precision), WORK, "cuda")
    job |= {"rounds": 3, "executor": executor, "comm": {"backend": "gloo"}}
    if executor != "sequential":
        job["block_size"] = 4
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    changes = [as_override(key, value) for key, value in settings.items()]
    alone = hpcfl.run(tmp_path / "job.yaml", changes, out=tmp_path / "one")
    assert alone.x.isfinite().all()
    two = ("run", str(tmp_path / "job.yaml"), *changes, "--out", str(tmp_path / "two"))
    done = on_ranks(2, "-m", "hpcfl", *two)
    assert done.returncode == 0, done.stderr
    hpcfl.export(tmp_path / "two", tmp_path / "two.npz")
    assert np.array_equal(np.load(tmp_path / "two.npz")["x"], alone.x.numpy())


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
def test_triton_trains_the_model_of_the_cpu(tmp_path, model):
    """Its kernels, replayed as graphs."""
    job = random_job(tmp_path, Subject(model, "float32"), WORK, "cpu") | {"rounds": 3}
    cpu = hpcfl.run(job, out=tmp_path / "cpu")
    here = ["device=cuda", "executor=triton", "block_size=4"]
    found = hpcfl.run(job, here, out=tmp_path / "cuda")
    torch.testing.assert_close(found.x, cpu.x, rtol=1e-3, atol=5e-4)


ALGORITHMS = ["fedavg", "fedhbm", "scaffold", "mime", "fedmim", "localghb", "fedsam", "feddyn"]


@pytest.mark.parametrize("executor", ["block", "lanes"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_clients_at_once(tmp_path, job, algorithm, precision, executor):
    """Replayed as graphs, blocks and lanes are the sequential executor up to rounding."""
    how = ["device=cuda", f"algorithm={{name: {algorithm}}}", f"precision={precision}"]
    many = [*how, f"executor={executor}", "block_size=3"]
    first, again = (hpcfl.run(job, many, out=tmp_path / name) for name in ("a", "b"))
    one = hpcfl.run(job, how, out=tmp_path / "one")
    assert torch.equal(first.x, again.x)
    tolerance = 1e-4 if precision == "float32" else 3e-2
    torch.testing.assert_close(first.x, one.x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("executor", ["block", "triton", "lanes", "auto"])
@pytest.mark.parametrize("model", ["lenet", "resnet20", "cnn_pfl"])
def test_images_of_many_clients_give_the_same_bits_twice(tmp_path, model, executor):
    draw = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 60), ("test", 8)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = draw.integers(0, 10, count)
    np.savez(tmp_path / "cifar10.npz", **arrays)
    job = {
        "data": {"kind": "cifar10", "root": str(tmp_path), "clients": 6},
        "model": {"name": model},
        "cohort": {"kind": "uniform", "size": 4},
        "algorithm": {"name": "scaffold"},
        "local": {"batch_size": 4, "lr": 0.01},
        "rounds": 3,
        "executor": executor,
        "device": "cuda",
    }
    first = hpcfl.run(job, out=tmp_path / "first")
    assert first.x.isfinite().all()
    again = hpcfl.run(first.directory / "job.yaml", out=tmp_path / "again")
    assert torch.equal(first.x, again.x)


def test_recurrent_layers_are_not_in_float16():
    """As torch's autocast would have them, whatever type it is told."""
    layer, sequence = nn.LSTM(5, 7, batch_first=True).cuda(), torch.randn(3, 6, 5).cuda()
    with autocast_bfloat16("cuda"):
        found, _ = layer(sequence)
    assert torch.equal(found, layer(sequence)[0])
