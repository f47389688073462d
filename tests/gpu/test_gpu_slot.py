"""The script that measures on a GPU: no part stops the next, and a rehearsal needs no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu

PART = """
import sys
from pathlib import Path
from gpu import Figures

figures = Figures(Path(sys.argv[1]))
figures.add(sys.argv[2], "first", ms=1.5)
{then}
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """One part that fails, one that hangs with a child, one that ends well."""
    figures = tmp_path / "results/figures.json"
    hang = 'import subprocess; subprocess.run(["sleep", "1000"])'
    for name, then in (("fails", "sys.exit(3)"), ("hangs", hang), ("well", "")):
        (tmp_path / f"{name}.py").write_text(PART.format(then=then))
    made = {
        name: gpu.Part(seconds, ["-m", name, str(figures), name])
        for name, seconds in (("fails", 60), ("hangs", 10), ("well", 60))
    }
    monkeypatch.setattr(gpu, "PARTS", made)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    return figures


@pytest.mark.slow
def test_a_part_that_fails_or_hangs_stops_none_of_the_next(parts, capsys):
    words = ["--results", str(parts.parent), "--rehearse"]
    assert gpu.main(words) == 1
    found = json.loads(parts.read_text())
    assert [found[name]["ended"] for name in ("fails", "hangs", "well")] == [
        "with 3",
        "by its time limit",
        "well",
    ]
    assert all(part["found"] == {"first": {"ms": 1.5}} for part in found.values())
    assert "hangs: ended by its time limit" in capsys.readouterr().out
    before = parts.read_bytes()
    assert gpu.main(words) == 1  # all had their time, so a later call has nothing to do
    assert parts.read_bytes() == before
    assert gpu.main([*words, "well"]) == 1
    assert json.loads(parts.read_text())["well"]["ended"] == "well"


def test_without_time_no_part_begins(parts):
    assert gpu.main(["--results", str(parts.parent), "--minutes", "0.1", "--rehearse"]) == 0
    assert not parts.exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("start",), ("rounds", "char_lstm", "tf32")])
def test_a_rehearsal_plays_the_executors_of_a_gpu(tmp_path, words):
    """But for Triton's kernels, which a CPU has no Triton for."""
    figures = tmp_path / "figures.json"
    here = Path(gpu.__file__).parent
    done = subprocess.run(
        [sys.executable, here / "gpu_parts.py", *words, "--figures", figures, "--name", "part",
         "--rehearse"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), str(here)])},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())["part"]["found"]
    assert {"lanes", "block", "sequential"} <= found.keys()
    for executor in ("lanes", "block", "sequential"):
        assert "failed" not in found[executor]
    if words == ("start",):
        assert found["lanes, 1 and 2"]["same"]


def test_what_had_not_its_time_or_is_of_another_commit_is_done_again(parts):
    figures = gpu.Figures(parts)
    parts.parent.mkdir()
    for name, ended, limit_s in (
        ("fails", "with 3", 1),
        ("hangs", gpu.TIMED_OUT, 1),
        ("well", gpu.TIMED_OUT, 60),
    ):
        figures.begin(name, "this", limit_s)
        assert not figures.has(name, "this")
        figures.set(name, ended=ended)
    assert [figures.has(name, "this") for name in gpu.PARTS] == [True, False, True]
    assert not any(figures.has(name, "another") for name in gpu.PARTS)


def test_a_subject_that_failed_is_a_failure(parts):
    figures = gpu.Figures(parts)
    parts.parent.mkdir()
    figures.begin("well", "this", 60)
    figures.set("well", ended="well")
    assert not figures.failed()
    figures.add("well", "lanes", failed="no room")
    assert figures.failed()
