"""A transformer is scored by the function that is trained: without PyTorch's fast path."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hpcfl

JOB = {
    "rounds": 2,
    "algorithm": {"name": "fedavg"},
    "cohort": {"kind": "uniform", "size": 3},
    "local": {"steps": 20, "batch_size": 4, "lr": 0.5},
}


class Padded(nn.Module):
    """Sees the places behind a sentence, of which PyTorch's fast path makes zeros."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.words = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 1), nn.Linear(8, 3)

    def forward(self, ids):
        padding = ids == 0
        return self.out(self.encoder(self.words(ids), src_key_padding_mask=padding).mean(1))


def test_a_padded_sentence_is_scored_by_the_trained_function(tmp_path, own_process):
    random = np.random.default_rng(0)
    words, labels = random.integers(1, 9, (60, 5)), random.integers(0, 3, 60)
    words[::2, 2:] = 0
    data = hpcfl.Data((words, labels), (words, labels), np.arange(60) // 10, integers=True)
    result = hpcfl.run(JOB, model=Padded, data=data, out=tmp_path / "run")
    trained = hpcfl.load_model(result.directory).train()
    loss = cross_entropy(trained(torch.from_numpy(words)), torch.from_numpy(labels))
    assert result.log[-1]["test_loss"] == pytest.approx(loss.item(), rel=1e-5)
