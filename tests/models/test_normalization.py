"""Normalisation in the models, and as a job asks for it."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hpcfl
from hpcfl.errors import JobError
from hpcfl.models import MODELS
from hpcfl.models.flat_vector import buffers
from hpcfl.models.init import load_initial
from hpcfl.models.normalization import FrozenNorm
from tests.vision import torchvision

pytestmark = pytest.mark.slow

NAMES = ["resnet18", "mobilenet_v2"]
LAYERS = {"resnet18": 20, "mobilenet_v2": 52}


def build(name, norm="frozen", seed=0, outputs=4):
    torch.manual_seed(seed)
    return MODELS[name](norm=norm, init="x.pth").build((3, 8, 8), outputs)


def given(name, outputs=4):
    """The state dict of a model with batch normalisation, with random statistics."""
    generator = torch.Generator().manual_seed(5)
    entries = build(name, seed=1, outputs=outputs).state_dict()
    for key, value in list(entries.items()):
        if key.endswith("running_mean"):
            value.normal_(generator=generator)
            entries[key.replace("running_mean", "num_batches_tracked")] = torch.tensor(7)
        if key.endswith("running_var"):
            value.uniform_(0.5, 2, generator=generator)
    return entries


def test_frozen_by_hand():
    """(7 - 3) / sqrt(4 + 1e-5) * 2 + 1 in the first channel, (7 - 0) / sqrt(1 + 1e-5) beside."""
    norm = FrozenNorm(2)
    norm.load_state_dict(
        {
            "weight": torch.tensor([2.0, 1.0]),
            "bias": torch.tensor([1.0, 0.0]),
            "running_mean": torch.tensor([3.0, 0.0]),
            "running_var": torch.tensor([4.0, 1.0]),
        }
    )
    found = norm(torch.full((1, 2, 1, 1), 7.0)).flatten()
    assert found.tolist() == pytest.approx([4 / 4.00001**0.5 * 2 + 1, 7 / 1.00001**0.5])


@pytest.mark.parametrize("training", [True, False])
def test_frozen_statistics_do_not_move(training):
    norm, before = FrozenNorm(3).train(training), FrozenNorm(3)
    images = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)) + 9
    norm(images).sum().backward()
    assert norm.weight.grad.any()
    assert norm.bias.grad.tolist() == [100.0] * 3
    assert torch.equal(norm.running_mean, before.running_mean)
    assert torch.equal(norm.running_var, before.running_var)
    assert torch.equal(norm.eval()(images), norm.train()(images))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_group_norm(name):
    frozen, group = build(name), build(name, "group")
    assert [n for n, _ in frozen.named_parameters()] == [n for n, _ in group.named_parameters()]
    assert len(buffers(frozen)) == 2 * LAYERS[name]
    assert not buffers(group)


@pytest.mark.parametrize("name", NAMES)
def test_precisions(name):
    model = build(name).eval().double()
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert {t.dtype for t in buffers(model).values()} == {torch.float64}
    exact = model(images.double()).detach()
    assert exact.dtype == torch.float64
    model = model.float()
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(images)
    assert torch.allclose(rough.double(), exact, atol=0.05 * float(exact.abs().max()))
    gradients = torch.autograd.grad(rough.float().sum(), list(model.parameters()))
    assert {g.dtype for g in gradients} == {torch.float32}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_weights_of_batch_normalisation(tmp_path, name, kind):
    entries, path = given(name, outputs=9), tmp_path / f"x.{kind}"
    (torch.save if kind == "pth" else save_file)(entries, path)
    head = [key for key in list(entries) if key.startswith(("fc.", "classifier."))]
    model = build(name)
    assert load_initial(model, path) == tuple(head)
    for key, tensor in model.state_dict().items():
        assert key in head or torch.equal(tensor, entries[key]), key
    model = build(name, "group")
    assert load_initial(model, path) == (*head, f"the running statistics of {LAYERS[name]} layers")
    for key, tensor in model.named_parameters():
        assert key in head or torch.equal(tensor, entries[key]), key


def test_frozen_statistics_are_never_missing(tmp_path):
    model = build("resnet18")
    entries = given("resnet18")
    del entries["layer3.0.bn2.running_var"]
    save_file(entries, tmp_path / "x.safetensors")
    expected = r"holds no layer3\.0\.bn2\.running_var, and batch normalisation takes its statis"
    with pytest.raises(JobError, match=expected):
        load_initial(model, tmp_path / "x.safetensors")
    np.save(tmp_path / "x.npy", np.ones(sum(p.numel() for p in model.parameters())))
    with pytest.raises(JobError, match=r"holds no bn1\.running_mean"):
        load_initial(model, tmp_path / "x.npy")


@pytest.mark.parametrize("name", NAMES)
def test_batch_normalisation_is_torchvisions(name):
    ours = MODELS[name](norm="batch").build((3, 32, 32), 10).state_dict()
    theirs = getattr(torchvision().models, name)(num_classes=10).state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}


def test_frozen_statistics_are_finite(tmp_path):
    entries = given("resnet18")
    entries["bn1.running_var"][3] = torch.nan
    save_file(entries, tmp_path / "x.safetensors")
    with pytest.raises(JobError, match=r"bn1\.running_var is not finite"):
        load_initial(build("resnet18"), tmp_path / "x.safetensors")


@pytest.mark.parametrize(("groups", "layers"), [(1, 20), (8, 20)])
def test_groups(groups, layers):
    model = MODELS["resnet18"](groups=groups).build((3, 8, 8), 4)
    found = [m.num_groups for m in model.modules() if isinstance(m, torch.nn.GroupNorm)]
    assert found == [groups] * layers


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("norm: layer", "model.norm: found 'layer', expected 'group', 'batch' or 'frozen'"),
        (
            "norm: frozen",
            "model: norm frozen takes its statistics from the file of init, and there",
        ),
        ("groups: 3", "model: groups: found 3, expected one of 1, 2, 4, 8"),
        ("init_layers: head", "model.init_layers: found 'head', expected 'all' or 'backbone'"),
    ],
)
def test_a_job_that_asks_for_something_else(job, refused, name, settings, message):
    job.write_text(job.read_text().replace("{name: linear}", f"{{name: {name}, {settings}}}"))
    line = refused("run", job)
    assert line.startswith(f"JobError: {job}:2: {message}")


class Pretrained(nn.Module):
    """Its normalisation keeps the statistics that it was made with."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 4)
        self.norm.running_mean.copy_(torch.tensor([0.5, 1.0, 1.5]))
        self.norm.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.out(self.norm(x))


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_statistics_that_a_model_keeps_are_frozen(executor, job, tmp_path):
    result = hpcfl.run(
        job, {"executor": executor, "rounds": 2}, model=Pretrained, out=tmp_path / "run"
    )
    norm = result.model().norm
    assert norm.running_mean.tolist() == [0.5, 1.0, 1.5]
    assert int(norm.num_batches_tracked) == 0


def test_logistic_refuses_targets(job, arrays, refused, tmp_path):
    path = arrays("targets.npz", y=np.linspace(0, 1, 40), x_test=None, y_test=None)
    settings = (f"data.path={path}", "model={name: logistic}", "algorithm={name: fedavg}")
    line = refused("check", "--data", job, *settings)
    assert (
        line == "JobError: model.name: logistic is for classes, this data has targets; use linear"
    )
