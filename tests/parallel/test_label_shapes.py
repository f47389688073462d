"""Tokens with padding, and bits: the same bits on one rank and on two."""

import math

import numpy as np
import pytest

from tests.parallel.harness import play_all
from tests.parallel.outcome import outcome

MODELS = """\
from torch import nn


class Tagger(nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.table, self.out = nn.Embedding(outputs, 4), nn.Linear(4, outputs)

    def forward(self, words):
        return self.out(self.table(words))
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Clients and batches of unlike numbers of labels."""
    root, draw = tmp_path_factory.mktemp("labels"), np.random.default_rng(0)
    (root / "tagger_of_ranks.py").write_text(MODELS)
    x, client = draw.integers(0, 7, (40, 5)), np.arange(40) ** 2 // 320
    y = np.where(np.arange(5) < draw.integers(0, 6, (40, 1)), x[:, ::-1], -100)
    np.savez(root / "tokens.npz", x=x, y=y, client=client, x_test=x[:17], y_test=y[:17])
    z, bits = draw.standard_normal((40, 3)), draw.random((40, 4)) < 0.4
    np.savez(root / "bits.npz", x=z, y=bits, client=client, x_test=z[:17], y_test=bits[:17])
    common = {
        "cohort": {"kind": "uniform", "size": 3},
        "algorithm": {"name": "scaffold"},
        "local": {"epochs": 1, "batch_size": 4, "lr": 0.3},
        "rounds": 2,
        "evaluate": {"every": 1, "batch_size": 5, "train": True, "clients": True},
        "device": "cpu",
    }
    tokens = {"kind": "arrays", "path": str(root / "tokens.npz"), "integers": True, "padding": -100}
    return root, {
        "tokens": {
            **common,
            "data": tokens,
            "model": {"name": "module", "of": "tagger_of_ranks.Tagger"},
        },
        "bits": {
            **common,
            "data": {"kind": "arrays", "path": str(root / "bits.npz")},
            "model": {"name": "linear"},
        },
    }


def test_on_two_ranks(jobs, tmp_path, monkeypatch):
    root, all_jobs = jobs
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.syspath_prepend(root)
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        play_all(tmp_path / str(ranks), all_jobs, ranks, mpi=False)
    scores = {"tokens": {"test_perplexity"}, "bits": {"test_f1", "client_f1_mean"}}
    for name in all_jobs:
        alone = outcome(tmp_path / "1" / name)
        last = alone.log[-1]
        assert scores[name] | {"test_accuracy", "client_accuracy_mean"} <= set(last)
        assert outcome(tmp_path / "2" / name) == alone, name
    last = outcome(tmp_path / "2" / "tokens").log[-1]
    assert last["test_perplexity"] == math.exp(last["test_loss"])
