"""The model is one function: in training and evaluation, at every resume, copy and export."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import hpcfl
from hpcfl.data.base import Dataset
from hpcfl.errors import JobError
from hpcfl.models.flat_vector import parameters
from hpcfl.runs.manifest import FUNCTION, MANIFEST, newest, write_manifest
from hpcfl.start.components.model_function import ModelFunction, model_function
from hpcfl.types import Examples
from hpcfl.user_code.generators import generators
from tests.rundirs import starts
from tests.start.test_fast_path import Padded

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((60, 6)).astype(np.float32)
Y = RANDOM.integers(0, 3, 60)
JOB = {
    "rounds": 2,
    "algorithm": {"name": "fedavg"},
    "cohort": {"kind": "uniform", "size": 3},
    "local": {"steps": 2, "batch_size": 4, "lr": 0.1},
    "checkpoint": {"every": 1},
}
order = ["left", "right"]  # in which a process makes layers
noted = "outputs in evaluation differ by"


class Named(nn.Module):
    """A layer for each half of the inputs, made in the order of the process."""

    def __init__(self):
        super().__init__()
        for name in order:
            setattr(self, name, nn.Linear(3, 4))
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out((self.left(x[:, :3]) + self.right(x[:, 3:])).relu())


class Listed(nn.Module):
    """The names do not tell which half a layer has."""

    def __init__(self):
        super().__init__()
        self.layers, self.out = nn.ModuleList(nn.Linear(3, 4) for _ in order), nn.Linear(4, 3)
        self.halves = list(order)

    def forward(self, x):
        half = {"left": x[:, :3], "right": x[:, 3:]}
        pairs = zip(self.layers, self.halves, strict=True)
        return self.out(sum(layer(half[name]) for layer, name in pairs).relu())


class BehindZeros(Listed):
    """Its initial outputs are zero, whatever the layers below compute."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)


class OwnGenerator(nn.Module):
    """Draws what no seed of hpcfl reaches, and what is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.features = torch.from_numpy(np.random.default_rng().standard_normal((6, 8))).float()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(x @ self.features)


class Normalised(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


class Drops(nn.Module):
    """By a function and by masks of its own, as a stochastic depth."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        z = functional.dropout(self.hidden(x), 0.5, self.training)
        pair = z.view(len(z), 2, 4)
        share = 0.5 if self.training else 0.0
        z = functional.scaled_dot_product_attention(pair, pair, pair, dropout_p=share).flatten(1)
        return self.out(
            z * z.new_empty(len(z), 1).bernoulli_(0.8).div_(0.8) if self.training else z
        )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 4, 2, dropout=0.5, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.lstm(x.unsqueeze(-1))[0][:, -1])


class Noisy(Drops):
    """Its noise in training is no dropout, so nothing can be said of the two modes."""

    def forward(self, x):
        z = self.hidden(x)
        return self.out(z + torch.randn_like(z) if self.training else z)


class Other(Drops):
    def forward(self, x):
        z = self.hidden(x)
        return self.out(z if self.training else z.relu())


class OfBatch(nn.Module):
    """What its layer gets of an example depends on the other examples of the batch."""

    def __init__(self, change):
        super().__init__()
        self.change, self.out = change, nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.change(x))


CHANGES = {
    "centred": lambda x: x - x.mean(0),
    "flipped": lambda x: x.flip(0),
    "rolled": lambda x: x.roll(1, 0),
    "summed": lambda x: x.cumsum(0),
    "summed from the end": lambda x: x.flip(0).cumsum(0).flip(0),
    "scaled": lambda x: x / x.abs().max(),
}


@pytest.fixture
def process(monkeypatch):
    """Be as another process, which has the layers in another order."""
    return lambda names: monkeypatch.setitem(globals(), "order", names)


@pytest.fixture
def run(tmp_path, own_process):
    def played(model):
        data = hpcfl.Data((X, Y), (X, Y), np.arange(60) // 10)
        return hpcfl.run(JOB, model=model, data=data, out=tmp_path / "run")

    return played


def evaluated(model, x=X, precision="float32"):
    """The function of a model in training mode."""
    tensor = torch.from_numpy(x)
    data = Dataset(
        Examples(tensor, torch.zeros(len(x))), None, None, 3, "cross_entropy",
        lambda rows, dtype, draws: rows if rows.dtype == torch.int64 else rows.to(dtype),
    )  # fmt: skip
    loaded = SimpleNamespace(
        job=SimpleNamespace(precision=precision, data=None), names={"model": "module"}
    )
    return model_function(loaded, model, parameters(model), data)


NAMES = (
    r"has the parameter 'right.weight' \[4, 3\] where that of the run has 'left.weight' \[4, 3\]"
)
OUTPUTS = r"has outputs for the first 4 training examples that differ by \S+ of their norm from"


@pytest.mark.parametrize(
    ("model", "said"), [(Named, NAMES), (Listed, OUTPUTS), (BehindZeros, OUTPUTS)]
)
def test_layers_in_another_order_are_refused(model, said, run, process, tmp_path):
    """Wherever the run's vector would get another meaning, which no error would tell."""
    root, copy = run(model).directory, tmp_path / "copy"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    process(["right", "left"])
    for command in (
        lambda: hpcfl.resume(root, ["rounds=3"]),
        lambda: hpcfl.resume(root, ["rounds=3"], out=copy),
        lambda: hpcfl.resume(root, ["local.lr=0.2"], round=1, out=copy),
        lambda: hpcfl.load_model(root),
        lambda: hpcfl.export(root, state_dict=tmp_path / "x.safetensors"),
    ):
        with pytest.raises(JobError, match=f"^{root}: the model as it is made now {said}") as e:
            command()
        assert e.value.exit_code == 2
        assert str(e.value).endswith("run the job again into another directory")
    assert not copy.exists()
    assert before == {path: path.read_bytes() for path in before}
    process(["left", "right"])
    assert hpcfl.resume(root, ["rounds=3"], out=copy).rounds == 3
    assert hpcfl.resume(root, ["rounds=3"]).rounds == 3
    hpcfl.load_model(copy)


def test_what_no_seed_reaches_is_refused(run):
    root = run(OwnGenerator).directory
    with pytest.raises(JobError, match=OUTPUTS):
        hpcfl.resume(root, ["rounds=3"])


def test_a_run_of_an_earlier_version_gets_its_function(run, process):
    root = run(Named).directory
    at = newest(root / "checkpoints")
    (root / FUNCTION).unlink()
    known = {name: crc for name, crc in at.run_files.items() if name != FUNCTION}
    (at.folder / MANIFEST).write_bytes(write_manifest(at._replace(run_files=known)))
    hpcfl.load_model(root)
    assert hpcfl.resume(root, ["rounds=3"]).rounds == 3
    process(["right", "left"])
    with pytest.raises(JobError, match=NAMES):
        hpcfl.resume(root, ["rounds=4"])


def test_a_model_with_another_function_in_evaluation_is_noted(run, hpcfl, capsys):
    root = run(Other).directory
    assert noted in capsys.readouterr().err
    assert any(noted in note for note in starts(root)[-1]["notes"])
    assert noted in hpcfl("check", root / "job.yaml", "--data").text
    assert noted in "".join(hpcfl("resume", root, "rounds=3").err)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("model", [Named, Normalised, Drops, Recurrent, lambda: Padded(0.5)])
def test_dropout_and_statistics_are_no_other_function(model, precision):
    made = model()
    words = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    found = evaluated(made, words if isinstance(made, Padded) else X, precision)
    assert found.training is not None
    assert found.notes == ()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("change", CHANGES)
def test_outputs_that_depend_on_other_examples_are_noted(change, precision):
    (note,) = evaluated(OfBatch(CHANGES[change]), precision=precision).notes
    assert note.startswith("warning: model: its outputs for an example in evaluation differ by ")
    assert "scores depend on evaluate.batch_size" in note
    assert evaluated(OfBatch(CHANGES[change]), X[:1], precision).notes == ()


def test_normalisation_by_each_batch_is_noted_and_goes_on(run, hpcfl, capsys):
    normalises = nn.BatchNorm1d(8, track_running_stats=False)
    root = run(nn.Sequential(nn.Linear(6, 8), normalises, nn.Linear(8, 3))).directory
    said = "scores depend on evaluate.batch_size"
    assert said in capsys.readouterr().err
    assert said in hpcfl("check", root / "job.yaml", "--data").text


def test_an_error_of_the_model_is_one_line(tmp_path, monkeypatch):
    def fails(self, x):
        raise ValueError("too late")

    monkeypatch.setattr(Named, "forward", fails)
    with pytest.raises(JobError, match=r"module: cannot be evaluated on .* ValueError: too late"):
        evaluated(Named())


def test_noise_in_training_is_not_compared():
    model = Noisy()
    found, again = evaluated(model), evaluated(model)
    assert found.training is None
    assert found.notes == ()
    assert found.difference(again, "that") == ""


def test_a_model_is_left_as_it_was():
    model = Normalised()
    model[1].eval()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    places = [parameter.data_ptr() for parameter in model.parameters()]
    before, python = generators(), random.getstate()
    evaluated(model)
    assert not generators().changed(before)
    assert random.getstate() == python
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert [layer.training for layer in model.modules()] == [True, True, False, True, True]
    for name, value in model.state_dict().items():
        assert torch.equal(value, kept[name]), name


@pytest.mark.parametrize(
    ("precision", "moved", "other"),
    [
        ("float32", 1e-4, False),
        ("float32", 1e-2, True),
        ("tf32", 1e-2, False),
        ("bf16", 5e-2, False),
        ("bf16", 0.2, True),
    ],
)
def test_rounding_is_no_other_function(precision, moved, other):
    """By the coarser precision of the two: a branch may change it."""
    sums = ((2.0, 1.0),)
    first = ModelFunction(precision="float32", parameters=(), evaluation=sums, training=sums)
    near = ((2.0, 1.0 + 2 * moved),)
    second = ModelFunction(precision=precision, parameters=(), evaluation=near, training=near)
    for one, two in ((first, second), (second, first)):
        assert bool(one.difference(two, "that")) == other
