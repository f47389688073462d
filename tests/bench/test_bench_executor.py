"""Both executors play the same steps, turn about, and are set against the same rate."""

import pytest
import torch
from torch import nn

from hpcfl.bench import executor as bench
from hpcfl.bench.executor import bench_executor
from hpcfl.bench.gpu import _write_texts
from hpcfl.bench.peers import BenchWork
from hpcfl.errors import JobError
from hpcfl.job.schema import load
from hpcfl.plan.arithmetic import forward_operations
from hpcfl.runner.components import build_components


@pytest.fixture(autouse=True)
def small(monkeypatch, determinism):
    monkeypatch.setattr(bench, "SIDE", 64)


def test_a_row_for_every_executor(job, arrays):
    arrays()
    result = bench_executor(job, ["model={name: linear}"], [2, 3], turns=3)
    assert [f.side for f in result.figures] == ["sequential", "blocks of 2", "blocks of 3"]
    assert all(len(f.values) == 3 and min(f.values) > 0 for f in result.figures)
    rows = [line.split() for line in result.table.splitlines()[1:-1]]
    alone, two, _ = result.figures
    assert float(rows[0][-2]) == 1
    assert float(rows[1][-2]) == pytest.approx(two.over(alone), abs=1e-3)


def test_blocks_that_the_clients_can_fill(job, arrays):
    arrays()
    result = bench_executor(job, ["model={name: linear}"], None, turns=1)
    assert [f.side for f in result.figures] == ["sequential", "blocks of 4"]


def test_what_multiplies_no_matrices_has_no_share(tmp_path):
    text = "task: quadratics\nalgorithm: {name: fedavg}\nlocal: {lr: 0.1}\nrounds: 2\n"
    path = tmp_path / "job.yaml"
    path.write_text(text + "data: {clients: 3, dim: 5}\ncohort: {kind: uniform, size: 2}\n")
    with pytest.raises(JobError, match="no matrix product"):
        bench_executor(path, [], [2], turns=1)


TEXTS = """\
data: {{kind: leaf, examples: text, root: {root}}}
model: {{name: char_lstm}}
cohort: {{kind: uniform, size: 2}}
algorithm: {{name: fedavg}}
local: {{lr: 0.1, batch_size: 3}}
rounds: 2
"""


def test_the_operations_of_an_lstm(tmp_path):
    """In float64 torch computes it by matrix products, in float32 by an operator of its own.

    The products leave out the gradient of each layer's initial state.
    """
    _write_texts(tmp_path, BenchWork(2, 3, 2, 3, 0.1))
    job = tmp_path / "job.yaml"
    job.write_text(TEXTS.format(root=tmp_path))
    plain, whole = (
        build_components(load(job, [f"precision={precision}"]), torch.device("cpu"))
        for precision in ("float64", "float32")
    )
    assert bench._flops(whole) == 3 * 3 * forward_operations(whole)
    assert bench._flops(whole) - bench._flops(plain) == 2 * (2 * 3 * 400 * 100)


def test_the_operations_of_cudnns_lstm():
    """It gets all layers' weights and biases in one list; two directions, and a projection."""
    lstm = nn.LSTM(8, 10, num_layers=2, bidirectional=True, proj_size=6)
    shapes = [weight.shape for weight in lstm.parameters()]
    gates = 2 * 40 * (8 + 6) + 2 * 40 * (12 + 6) + 4 * 6 * 10
    found = [
        bench.RECURRENT[operator]((5, 3, 8), shapes, 4, None, out_shape=None)
        for operator in (torch.ops.aten._cudnn_rnn, torch.ops.aten._cudnn_rnn_backward)
    ]
    assert found == [2 * 15 * gates, 4 * 15 * gates]
