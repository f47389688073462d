"""A model whose layers are made in the order of a set, which is another one in each process."""

import sys
from pathlib import Path

import pytest

from tests.parallel.background import write
from tests.parallel.harness import mpirun
from tests.parallel.outcome import outcome
from tests.parallel.test_ranks_have_the_same_inputs import make

HERE = Path(__file__).parent
MODEL = """\
from torch import nn

NAMES = ["age", "blood", "heart", "image", "liver", "sugar", "voice", "weight"]


class Net(nn.Module):
    def __init__(self, outputs, ordered):
        super().__init__()
        for name in sorted(NAMES) if ordered else set(NAMES):
            setattr(self, name, nn.Linear(8, outputs))

    def forward(self, x):
        parts = zip(sorted(NAMES), x.split(8, 1), strict=True)
        return sum(getattr(self, name)(part) for name, part in parts)
"""


@pytest.fixture
def play(tmp_path, monkeypatch):
    """A command on so many ranks, whose sets have the orders of these seeds and the next ones."""
    (tmp_path / "net.py").write_text(MODEL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def played(ranks, seed, *words):
        done = mpirun(ranks, HERE / "hash_seeds.py", seed, "-m", "hpcfl", *words, anew=True)
        lines = [line for line in done.stderr.splitlines() if line.startswith("JobError")]
        assert "Traceback" not in done.stderr
        return done.returncode, lines

    return played


@pytest.fixture
def job(tmp_path):
    data = {
        "kind": "arrays",
        "path": str(make(tmp_path)),
        "clients": 6,
        "partition": {"kind": "iid"},
    }

    def made(*, ordered):
        model = {"name": "module", "of": "net.Net", "arguments": {"ordered": ordered}}
        return write(
            tmp_path,
            data=data,
            model=model,
            rounds=4,
            checkpoint={"every": 2},
            evaluate={"every": 2},
            task=None,
        )

    return made


def test_ranks_with_another_order_are_refused(job, play, tmp_path):
    code, lines = play(2, 1, "run", job(ordered=False), "--out", tmp_path / "run")
    assert code == 2
    (line,) = lines
    assert "model.name: module: that of rank 1 has the parameter " in line
    assert "sort what comes from a set" in line
    assert not (tmp_path / "run").exists()


def test_a_resume_with_another_order_is_refused(job, play, tmp_path):
    run = tmp_path / "run"
    assert play(1, 1, "run", job(ordered=False), "--out", run) == (0, [])
    code, lines = play(1, 2, "resume", run, "rounds=6")
    assert code == 2
    (line,) = lines
    assert f"{run}: the model as it is made now has the parameter " in line
    assert play(1, 1, "resume", run, "rounds=6") == (0, [])


def test_sorted_layers_have_the_same_bits(job, play, hpcfl, own_process, tmp_path, monkeypatch):
    runs, file = [tmp_path / name for name in ("one", "several")], job(ordered=True)
    assert play(2, 2, "run", file, "--out", runs[1], "rounds=2") == (0, [])
    assert play(3, 4, "resume", runs[1], "rounds=4") == (0, [])
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert hpcfl("run", file, "--out", runs[0]).code == 0
        first, other = map(outcome, runs)
    finally:
        sys.modules.pop("net", None)
    assert first == other
