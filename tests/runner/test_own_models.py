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
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Conv1d(1, 2, 3), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(2, track_running_stats=False)

    def forward(self, x):
        return self.out(self.norm(self.hidden(x.unsqueeze(1))).relu().flatten(1))


class NeedsTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        assert len(x) > 1, "a batch of one"
        return self.out(x)


@pytest.fixture
def run(tmp_path):
    def played(model, **changes):
        data = hpcfl.Data((X, Y), (X, Y), np.arange(60) // 10)
        return hpcfl.run({**JOB, **changes}, model=model, data=data, out=tmp_path / "run")

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
    with pytest.raises(JobError, match=r"executor: block cannot play .* \(a batch of one"):
        run(NeedsTwo, executor="block")
