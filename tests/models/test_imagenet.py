"""Weights that torchvision publishes; and that our models are its models, where it is installed."""

import errno
import inspect
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from hpcfl.errors import DiskError, JobError
from hpcfl.models import MODELS, imagenet
from hpcfl.models.linear import Linear
from tests.vision import torchvision

NAMES = ["resnet18", "mobilenet_v2"]


def randomised(model):
    """The model with random factors, offsets and statistics, as if trained."""
    generator = torch.Generator().manual_seed(3)
    for name, tensor in model.state_dict().items():
        if name.endswith("running_mean"):
            tensor.normal_(generator=generator).mul_(0.1)
        if name.endswith(("running_var", "bn1.weight", "bn2.weight", ".1.weight")):
            tensor.mul_(1 + 0.5 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
def test_frozen_is_torchvisions_in_evaluation(name, tmp_path):
    theirs = randomised(torchvision().models.get_model(name, num_classes=7))
    ours = MODELS[name](norm="frozen", init="x.pth").build((3, 40, 40), 7).eval()
    fit = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert not fit.missing_keys
    assert all(key.endswith("num_batches_tracked") for key in fit.unexpected_keys)
    expected = [(n, p.shape) for n, p in theirs.named_parameters()]
    assert [(n, p.shape) for n, p in ours.named_parameters()] == expected
    images = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_group_norm_is_torchvisions_with_that_layer(name):
    def norm(channels):
        return torch.nn.GroupNorm(4, channels)

    theirs = torchvision().models.get_model(name, num_classes=7, norm_layer=norm)
    theirs = randomised(theirs)
    ours = MODELS[name](groups=4).build((3, 40, 40), 7).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_random_start_is_torchvisions(name):
    """The spread of every layer's weights."""
    theirs = torchvision().models.get_model(name, num_classes=50)
    ours = MODELS[name]().build((3, 40, 40), 50)
    for (layer, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if a.numel() > 500:
            assert a.std().item() == pytest.approx(b.std().item(), rel=0.25), layer
        elif a.ndim == 1 and layer != "fc.bias":  # which is drawn, of too few numbers to compare
            assert torch.equal(a, b), layer


@pytest.mark.parametrize("name", NAMES)
def test_the_default_weights_are_torchvisions(name):
    weights = torchvision().models.get_model_weights(name).DEFAULT
    assert imagenet.ADDRESS + MODELS[name].imagenet == weights.url


@dataclass(frozen=True, kw_only=True)
class Small(Linear):
    """A model whose published weights the test makes."""

    imagenet: ClassVar[str | None] = None


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site that publishes the weights of ``Small``, and an empty cache of torch."""
    folder = tmp_path / "site"
    folder.mkdir()
    torch.save(Small().build((3,), 4).state_dict(), folder / "x.pth")
    digest = sha256((folder / "x.pth").read_bytes()).hexdigest()
    path = (folder / "x.pth").rename(folder / f"small-{digest[:8]}.pth")
    monkeypatch.setattr(Small, "imagenet", path.name)
    monkeypatch.setattr(imagenet, "ADDRESS", f"{folder.as_uri()}/")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return path


@pytest.fixture
def model():
    return Small(init="torchvision")


def test_fetched_once(site, model, tmp_path):
    assert model.init_file == tmp_path / "torch/hub/checkpoints" / site.name
    model.fetch()
    assert model.init_file.read_bytes() == site.read_bytes()
    site.unlink()
    model.fetch()  # is here


def test_nothing_is_fetched_unasked(site, monkeypatch):
    monkeypatch.setattr(imagenet, "fetch", lambda name: pytest.fail("fetched"))
    Small().fetch()
    Small(init=str(site)).fetch()


def test_without_internet(site, model):
    site.unlink()
    with pytest.raises(JobError) as refused:
        model.fetch()
    line = str(refused.value)
    assert line.startswith(f"model.init: torchvision: {site.name} could not be downloaded: ")
    assert line.endswith(
        f"; download {site.parent.as_uri()}/{site.name} elsewhere, put it into "
        f"{model.init_file.parent} or any folder FOLDER, then say model.init=FOLDER/{site.name}"
    )
    assert "\n" not in line
    assert not model.init_file.exists()


def test_a_disk_that_is_full(site, model, monkeypatch):
    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch.hub, "download_url_to_file", full)
    with pytest.raises(DiskError, match=r"No space left on device; make room in .*checkpoints"):
        model.fetch()


def test_damage_is_found(site, model):
    model.fetch()
    model.init_file.write_bytes(b"nothing")
    with pytest.raises(JobError, match=r"is damaged, its SHA-256 begins with \w{8}; remove it, or"):
        model.fetch()


def test_a_download_that_is_not_what_it_should_be(site, model):
    site.write_bytes(b"nothing")
    with pytest.raises(JobError, match="could not be downloaded: invalid hash value"):
        model.fetch()
    assert not model.init_file.exists()


def test_a_run_starts_from_them(site, job, hpcfl, tmp_path, monkeypatch):
    """By a dotted path, as a user's own model would be named; nothing is read at a resume."""
    (tmp_path / "own_small.py").write_text(
        "from typing import ClassVar\n\n"
        + inspect.getsource(Small)
        .replace("@dataclass", "from dataclasses import dataclass\n@dataclass")
        .replace("(Linear)", "(__import__('hpcfl.models.linear', fromlist=['x']).Linear)")
        .replace("= None", f"= {site.name!r}")
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    chosen = "model={name: own_small.Small, init: torchvision}"
    done = hpcfl("run", job, chosen, "--out", run)
    assert done.code == 0, done.err
    state = torch.load(site, weights_only=True)
    flat = torch.cat([value.reshape(-1) for value in state.values()])
    assert np.array_equal(np.load(run / "initial.npy"), flat.numpy())
    assert Path(tmp_path / "torch/hub/checkpoints" / site.name).exists()
    site.unlink()
    (tmp_path / "torch/hub/checkpoints" / site.name).unlink()
    assert hpcfl("resume", run).code == 0


def test_a_model_that_nobody_publishes(job, refused):
    line = refused("check", job, "model.init=torchvision")
    assert line.endswith(
        "model: init: torchvision publishes no weights of this model; name a file, or take "
        "resnet18 or mobilenet_v2"
    )
