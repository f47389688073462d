"""Modules of the user's whose results could silently depend on something else than the job."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hpcfl
from hpcfl.errors import JobError

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((60, 6)).astype(np.float32)
Y = RANDOM.integers(0, 3, 60)
JOB = {
    "rounds": 2,
    "seed": 5,
    "algorithm": {"name": "fedavg"},
    "cohort": {"kind": "uniform", "size": 3},
    "local": {"steps": 2, "batch_size": 4, "lr": 0.1},
}


class RandomFeatures(nn.Module):
    """Draws something that is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.features = torch.randn(6, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(x @ self.features)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(self.b(self.a(x)))


class MaxNorm(nn.Module):
    """Its lookup changes the table in place."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(4, 2, max_norm=0.5), nn.Linear(12, 3)

    def forward(self, x):
        return self.out(self.table((x.abs().long()).clamp(0, 3)).flatten(1))


class BatchStatistics(nn.Module):
    """Normalises by its batch, by operations of its own."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Conv1d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x):
        z = self.hidden(x.unsqueeze(1))
        return self.out((z - z.mean((0, 2), keepdim=True)).relu().flatten(1))


class NotFinite(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)
        nn.init.constant_(self.out.weight, torch.nan)

    def forward(self, x):
        return self.out(x)


class DividesByZero(nn.Module):
    """Unless ``model.init`` has another scale."""

    def __init__(self):
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.zeros(1)), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x / self.scale)


class RootOfZero(nn.Module):
    """Its outputs are finite, but their gradient is not."""

    def __init__(self):
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.zeros(1)), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x * self.scale.sqrt())


class NeedsTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        assert len(x) > 1, "a batch of one"
        return self.out(x)


class FrozenHidden(nn.Module):
    """The two hidden layers share a weight; neither is trained."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight
        self.a.requires_grad_(False)
        self.b.requires_grad_(False)

    def forward(self, x):
        return self.out(self.b(self.a(x).relu()).relu())


class FrozenLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3)
        self.lstm.requires_grad_(False)

    def forward(self, x):
        return self.out(self.lstm(x.unsqueeze(-1))[0][:, -1])


class FrozenLast(nn.Module):
    """A backbone that is trained under a fixed classifier."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.head.requires_grad_(False)

    def forward(self, x):
        dtype = next(self.head.parameters()).dtype
        return self.head(self.a(x.to(dtype)))


class ComplexBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("wide", torch.full((3,), 1 + 1e-12, dtype=torch.float64))

    def forward(self, x):
        pairs = torch.view_as_complex(x.reshape(len(x), 3, 2)) * self.turn.to(torch.complex64)
        return self.out(torch.view_as_real(pairs).flatten(1))


class LazyUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.extra = nn.Linear(6, 3), nn.LazyLinear(2)

    def forward(self, x):
        return self.out(x)


class AllFrozen(FrozenHidden):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.LazyLinear(5), nn.LazyLinear(3)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x)


class TakesLabels(Unused):
    def forward(self, x, y):
        return self.out(x)


class InADict(Unused):
    def forward(self, x):
        return {"logits": self.out(x)}


class OneRow(Unused):
    def forward(self, x):
        return self.out(x).reshape(1, -1)


class OneTarget(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 1)

    def forward(self, x):
        return self.out(x)


class Squeezed(OneTarget):
    def forward(self, x):
        return self.out(x).squeeze(1)


def in_half_precision():
    return nn.Linear(6, 3).half()


def three_outputs():
    return nn.Linear(6, 3)


def ends_in_softmax():
    return nn.Sequential(nn.Linear(6, 3), nn.Softmax(1))


def ends_in_log_softmax():
    return nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(1))


def ends_in_sigmoid():
    return nn.Sequential(nn.Linear(6, 3), nn.Sigmoid())


def scripted():
    return torch.jit.script(nn.Linear(6, 3))


@pytest.fixture
def run(tmp_path):
    def played(model, labels=Y, name="run", overrides=None, **changes):
        data = hpcfl.Data((X, labels), (X, labels), np.arange(60) // 10)
        return hpcfl.run({**JOB, **changes}, overrides, model=model, data=data, out=tmp_path / name)

    return played


def test_a_loaded_model_has_what_the_run_drew(run):
    result = run(RandomFeatures)
    outputs = hpcfl.load_model(result.directory)(torch.from_numpy(X))
    found = (outputs.argmax(1).numpy() == Y).mean()
    assert found == pytest.approx(result.accuracy, abs=1e-6)


def test_tied_weights_are_exported(run, tmp_path):
    result = run(Tied)
    (file,) = hpcfl.export(result.directory, state_dict=tmp_path / "tied.safetensors")
    found = load_file(file)
    assert torch.equal(found["a.weight"], found["b.weight"])
    model = hpcfl.load_model(result.directory)
    assert model.a.weight is model.b.weight


def test_a_forward_pass_that_changes_parameters_is_refused(run):
    with pytest.raises(JobError, match="forward pass changes its parameters in place"):
        run(MaxNorm)


def test_batch_statistics_are_refused_in_blocks_alone(run):
    with pytest.raises(JobError, match="depends on the other examples of its batch"):
        run(BatchStatistics, executor="block")


def test_batch_statistics_train_one_client_at_a_time(run):
    assert run(BatchStatistics).rounds == 2


def test_whatever_a_model_raises_in_blocks_is_one_line(run):
    with pytest.raises(JobError, match=r"executor: block cannot train .* \(a batch of one"):
        run(NeedsTwo, executor="block")


def test_float_labels_and_outputs_of_classes(run):
    with pytest.raises(
        JobError, match=r"shape \(\d+, 3\), expected that of the labels, \(\d+, 1\)"
    ):
        run(three_outputs, labels=Y.astype(np.float32))


def weights(result):
    return {
        name: value.clone()
        for name, value in hpcfl.load_model(result.directory).state_dict().items()
    }


@pytest.mark.parametrize("executor", ["sequential", "block"])
@pytest.mark.parametrize(("model", "kept"), [(FrozenHidden, ("a", "b")), (FrozenLstm, ("lstm",))])
def test_frozen_parameters_stay_as_they_are(model, kept, executor, run, tmp_path):
    """They are in the model and its exports, and in no upload."""
    first = run(model, rounds=1, name="one", executor=executor)
    result = run(model, executor=executor)
    before, after = weights(first), weights(result)
    for name, value in after.items():
        assert torch.equal(before[name], value) == name.startswith(kept), name
    layer = hpcfl.load_model(result.directory).out
    trained = 4 * sum(parameter.numel() for parameter in layer.parameters())
    assert result.log[-1]["up_bytes"] == 3 * trained
    (file,) = hpcfl.export(result.directory, state_dict=tmp_path / "all.safetensors")
    assert load_file(file).keys() == after.keys()
    outputs = hpcfl.load_model(result.directory)(torch.from_numpy(X))
    assert (outputs.argmax(1).numpy() == Y).mean() == pytest.approx(result.accuracy, abs=1e-6)


def test_a_wrong_override_of_a_call_is_of_no_command_line(run):
    with pytest.raises(JobError, match=r'^overrides: local.lrr: local has no "lrr"'):
        run(Tied, overrides={"local.lrr": 0.1})
    result = run(Tied)
    with pytest.raises(JobError, match=r"^overrides: local.lr: is 0.1 in .*, asked for is 0.2, wh"):
        hpcfl.resume(result.directory, {"local.lr": 0.2})


def test_a_model_that_is_all_frozen_is_refused(run):
    with pytest.raises(JobError, match="has no parameter to train"):
        run(AllFrozen)


@pytest.mark.parametrize("layers", ["all", "backbone"])
def test_a_file_provides_frozen_parameters(layers, run, tmp_path):
    """Also where the last layer, which "backbone" leaves out, is the frozen one."""
    first = run(FrozenLast, name="one")
    file = tmp_path / "one.safetensors"
    hpcfl.export(first.directory, state_dict=file)
    again = run(
        FrozenLast, name="two", seed=6, rounds=1, local={"steps": 1, "batch_size": 4, "lr": 1e-9},
        overrides={"model.init": str(file), "model.init_layers": layers},
    )  # fmt: skip
    saved, found = load_file(file), weights(again)
    assert torch.allclose(found["a.weight"], saved["a.weight"], atol=1e-6)
    assert torch.equal(found["head.weight"], saved["head.weight"]) == (layers == "all")


def test_shared_frozen_weights_are_no_skipped_ones(run, tmp_path, capsys):
    first = run(FrozenHidden, name="one")
    file = tmp_path / "one.safetensors"
    hpcfl.export(first.directory, state_dict=file)
    run(FrozenHidden, name="two", overrides={"model.init": str(file)})
    assert "left out" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "noted"),
    [(ends_in_softmax, 1), (ends_in_log_softmax, 0), (ends_in_sigmoid, 0), (three_outputs, 0)],
)
def test_outputs_that_are_probabilities_are_noted(model, noted, run, hpcfl, capsys):
    result = run(model, name="first")
    line = "are probabilities (in [0, 1], of sum 1), but the loss cross_entropy applies softmax to"
    assert capsys.readouterr().err.count(line) == noted
    checked = hpcfl("check", result.directory / "job.yaml", "--data").text
    assert checked.count(line) == noted


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_complex_and_wide_buffers_are_left_alone(precision, run):
    found = dict(
        hpcfl.load_model(run(ComplexBuffer, precision=precision).directory).named_buffers()
    )
    assert found["turn"].dtype == torch.complex64
    assert found["wide"].dtype == torch.float64


def test_lazy_layers_have_the_shapes_of_the_data(run):
    result = run(Lazy)
    shapes = {name: tuple(value.shape) for name, value in weights(result).items()}
    assert shapes["hidden.weight"] == (5, 6)
    assert shapes["out.weight"] == (3, 5)
    outputs = hpcfl.load_model(result.directory)(torch.from_numpy(X))
    assert (outputs.argmax(1).numpy() == Y).mean() == pytest.approx(result.accuracy, abs=1e-6)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", "float32"), ("float64", "float64")])
def test_a_model_has_the_precision_of_the_job(precision, dtype, run):
    found = weights(run(in_half_precision, precision=precision))
    assert {value.dtype for value in found.values()} == {getattr(torch, dtype)}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Unused, r"does not depend on the parameter unused.weight .*; remove it, freeze it by"),
        (
            LazyUnused,
            "its parameter extra.weight has no shape after a forward pass, which does not",
        ),
        (TakesLabels, "missing 1 required positional argument: 'y'"),
        (InADict, "returns a dict, expected a tensor; return the outputs alone"),
        (
            NotFinite,
            r"model.name: \S+: its parameter out.weight is not finite when the model is made; init",
        ),
        (
            DividesByZero,
            "nan or inf in its outputs .* for the first batch, before any step, expect",
        ),
        (
            RootOfZero,
            "nan or inf in its gradient .* for the first batch, before any step, expected",
        ),
        (OneRow, r"have the shape \(1, 12\) for 4 examples, expected \(4, ...\)"),
    ],
)
def test_a_model_with_other_outputs_is_refused(model, said, run):
    with pytest.raises(JobError, match=said):
        run(model)


def test_a_resume_does_not_ask_for_finite_numbers_where_the_run_did_not_begin(run, tmp_path):
    """The file of ``model.init`` may be gone by then."""
    file = tmp_path / "init.npy"
    np.save(file, np.ones(22, np.float32))
    root = run(DividesByZero, overrides={"model.init": str(file)}).directory
    file.unlink()
    assert hpcfl.resume(root, {"rounds": 3}).rounds == 3


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_scripted_module_is_refused(run):
    for model in (scripted, scripted()):
        with pytest.raises(JobError, match=r"found a module of torch.jit.script or trace, "):
            run(model)


def test_parameters_that_do_not_fit_into_memory_are_one_line(run, monkeypatch):
    """As under a limit of the user's, ulimit -v or --mem."""

    def fail(model):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    monkeypatch.setattr("hpcfl.start.components.initial_model.parameters", fail)
    with pytest.raises(JobError, match=r"^model.name: module: its parameters cannot .* allocate 9"):
        run(Tied)


@pytest.mark.parametrize("executor", ["sequential", "block"])
def test_outputs_of_one_target_may_have_one_dimension(executor, run):
    targets = X @ np.arange(6, dtype=np.float32)
    flat = run(Squeezed, targets, "flat", executor=executor, evaluate={"every": 1})
    column = run(OneTarget, targets, "column", executor=executor, evaluate={"every": 1})
    losses = [
        [line["test_loss"] for line in result.log if "test_loss" in line]
        for result in (flat, column)
    ]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
