"""Both executors play the same steps, turn about, and are set against the same rate."""

import pytest

from hpcfl.bench import executor as bench
from hpcfl.bench.executor import bench_executor
from hpcfl.errors import JobError


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
