"""The ranks of a host have one copy of the data, under a real mpirun."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.forked import finish
from tests.parallel.background import finish_mpi, write
from tests.parallel.harness import mpirun
from tests.parallel.outcome import outcome

EXAMPLES, FEATURES = 20_000, 100  # 16 MB


@pytest.fixture
def job(tmp_path):
    random = np.random.default_rng(0)
    y = random.integers(0, 10, EXAMPLES)
    x = random.standard_normal((EXAMPLES, FEATURES)) + y[:, None]
    path = tmp_path / "own.npz"
    np.savez(path, x=x, y=y, client=np.arange(EXAMPLES) // 500, x_test=x[:50], y_test=y[:50])
    return write(
        tmp_path,
        data={"kind": "arrays", "path": str(path)},
        model={"name": "logistic"},
        rounds=2,
        cohort={"kind": "uniform", "size": 4},
        task=None,
    )


def test_two_ranks_share_the_pages_and_have_the_bits_of_one(tmp_path, job):
    done = mpirun(2, Path(__file__).with_name("shared_pages.py"), job, tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert finish(1, "run", job, "--out", tmp_path / "one").returncode == 0
    assert outcome(tmp_path / "two") == outcome(tmp_path / "one")
    first, second = (json.loads((tmp_path / f"two-{r}.json").read_text()) for r in range(2))
    assert first["inode"] == second["inode"]
    size = EXAMPLES * FEATURES * 8 // 1024
    for rank in (first, second):
        assert rank["Rss"] >= size
        assert rank["Pss"] < 0.6 * rank["Rss"]
        assert rank["Anonymous"] == 0  # nobody has written to it


def test_a_file_that_the_loading_rank_refuses_is_refused_in_one_line(tmp_path, job):
    path = tmp_path / "own.npz"
    path.write_bytes(path.read_bytes()[:10_000])
    done = finish_mpi(2, "run", job, "--out", tmp_path / "run")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"DataError: {path}: ")
    assert not (tmp_path / "run").exists()
