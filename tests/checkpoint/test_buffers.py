"""What a model computes with besides its parameters lasts as long as the run."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hpcfl.checkpoint.buffers import read, write
from hpcfl.errors import StoreError
from hpcfl.job.load import load
from hpcfl.models import MODELS
from hpcfl.start.components.build import build_components

FIRST = "features.0.1.running_mean"


@pytest.fixture
def weights(tmp_path):
    """A state dict of MobileNetV2 for other classes, with random statistics."""
    torch.manual_seed(4)
    entries = MODELS["mobilenet_v2"](norm="frozen", init="x").build((3, 8, 8), 9).state_dict()
    for name, value in entries.items():
        if name.endswith("running_mean"):
            value.normal_()
        if name.endswith("running_var"):
            value.uniform_(0.5, 2)
    save_file(entries, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.fixture
def frozen(tmp_path, arrays, weights, job):
    """A job of two rounds of a MobileNetV2 with frozen statistics."""
    images = np.random.default_rng(0).standard_normal((8, 3, 8, 8))
    path = arrays(
        "images.npz", x=images, y=np.arange(8) % 4, x_test=images, y_test=np.arange(8) % 4
    )
    text = job.read_text().replace("rounds: 4", "rounds: 2")
    text = text.replace(str(tmp_path / "data.npz"), str(path))
    model = f"{{name: mobilenet_v2, norm: frozen, init: {weights}}}"
    job.write_text(text.replace("{name: linear}", model).replace("{every: 2}", "{every: 1}"))
    return job


@pytest.fixture
def run(frozen, tmp_path, hpcfl):
    out = tmp_path / "run"
    done = hpcfl("run", frozen, "--out", out)
    assert done.code == 0, done.err
    return out


def test_a_run_keeps_the_statistics_of_its_file(run, weights):
    kept, given = load_file(run / "buffers.safetensors"), load_file(weights)
    assert len(kept) == 2 * 52
    assert all(torch.equal(value, given[name]) for name, value in kept.items())


def test_check_says_what_was_left_out(frozen, hpcfl):
    done = hpcfl("check", "--data", frozen)
    assert done.code == 0, done.err
    (line,) = [line for line in done.out if "model.init left out" in line]
    assert line.endswith("model.init left out classifier.1.weight, classifier.1.bias")


def test_a_resume_needs_no_file_of_initial_weights(run, frozen, weights, tmp_path, hpcfl):
    """The last round played again on the kept statistics ends at the same model."""
    before = load_file(run / "checkpoints/00000002/server.safetensors")["x"]
    (run / "checkpoints/00000002/manifest.json").unlink()
    weights.unlink()
    done = hpcfl("resume", run)
    assert done.code == 0, done.err
    after = load_file(run / "checkpoints/00000002/server.safetensors")["x"]
    assert torch.equal(before, after)


def test_a_resume_uses_the_kept_statistics(run, refused):
    """Others in the run directory, with a right checksum, make another function of the model."""
    kept = load_file(run / "buffers.safetensors")
    write(run / "buffers.safetensors", {name: value + 0.5 for name, value in kept.items()})
    line = refused("resume", run, "rounds=3")
    assert line.startswith(f"JobError: {run}: the model as it is made now has outputs for the ")


@pytest.mark.parametrize("best", [False, True])
def test_the_exported_state_dict_has_them(frozen, tmp_path, weights, hpcfl, best):
    run, target = tmp_path / "run", tmp_path / "x.safetensors"
    assert hpcfl("run", frozen, "evaluate={every: 1, best: true}", "--out", run).code == 0
    weights.unlink()
    done = hpcfl("export", run, "--state-dict", target, *(["--best"] if best else []))
    assert done.code == 0, done.err
    found, kept = load_file(target), load_file(run / "buffers.safetensors")
    assert set(kept) < set(found)
    assert all(torch.equal(value, found[name]) for name, value in kept.items())
    model = MODELS["mobilenet_v2"](norm="frozen", init="x").build((3, 8, 8), 4)
    model.load_state_dict(found)
    if not best:
        x = load_file(run / "checkpoints/00000002/server.safetensors")["x"]
        assert torch.equal(torch.cat([p.detach().reshape(-1) for p in model.parameters()]), x)


def test_an_export_starts_another_run(run, frozen, tmp_path, hpcfl):
    target, other = tmp_path / "x.safetensors", tmp_path / "other"
    assert hpcfl("export", run, "--state-dict", target).code == 0
    assert hpcfl("run", frozen, f"model.init={target}", "--out", other).code == 0
    first, second = (load_file(r / "buffers.safetensors") for r in (run, other))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


HARMS = [
    (lambda path: path.unlink(), "buffers.safetensors: cannot be read: "),
    (lambda path: path.write_bytes(path.read_bytes()[:-4]), "cannot be read: "),
    (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"), "checksum "),
    (lambda path: write(path, {FIRST: torch.ones(32)}), "is of another model; put back"),
]


def test_damage(run, tmp_path, refused):
    path = run / "buffers.safetensors"
    whole = path.read_bytes()
    for harm, message in HARMS:
        harm(path)
        for command in (
            ["resume", run],
            ["export", run, "--state-dict", tmp_path / "x.safetensors"],
        ):
            line = refused(*command)
            assert line.startswith(f"StoreError: {path}: ")
            assert message in line
        path.write_bytes(whole)


def test_a_fresh_initialisation_draws_parameters_alone(frozen, weights, determinism):
    parts = build_components(load(frozen), torch.device("cpu"))
    given = load_file(weights)
    assert not torch.equal(parts.random_init(0)(), parts.random_init(1)())
    assert not torch.equal(parts.random_init(0)(), parts.model.x0)
    assert torch.equal(parts.model.buffers[FIRST], given[FIRST])
    parts = build_components(load(frozen, ["precision=float64"]), torch.device("cpu"))
    assert torch.equal(parts.model.buffers[FIRST], given[FIRST].double())


def test_a_model_without_any_has_no_file(job, tmp_path, hpcfl):
    assert hpcfl("run", job, "--out", tmp_path / "run").code == 0
    assert not (tmp_path / "run/buffers.safetensors").exists()
    assert hpcfl("resume", tmp_path / "run").code == 0


def test_any_dtype_and_shape(tmp_path):
    path = tmp_path / "b.safetensors"
    given = {
        "a": torch.tensor(3),
        "b": torch.rand(2, 3).T,
        "c": torch.ones(2, dtype=torch.bfloat16),
    }
    write(path, given)
    into = {name: torch.zeros_like(value) for name, value in given.items()}
    read(path, into)
    assert all(torch.equal(into[name], value) for name, value in given.items())
    with pytest.raises(StoreError, match="of another model"):
        read(path, {**into, "a": torch.tensor(3.0)})
