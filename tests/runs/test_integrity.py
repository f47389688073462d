"""One flipped bit that gave a wrong result with exit code 0: each is refused, or has no effect."""

import random

import numpy as np
import pytest

from tests.rundirs import text


@pytest.fixture
def run(job, tmp_path, hpcfl):
    """Its clients begin with the initial model; 2 and 4 are kept, and the best model."""
    out = tmp_path / "run"
    words = ("algorithm.first=shared", "evaluate={every: 1, best: true}")
    assert hpcfl("run", job, *words, "--out", out).code == 0
    return out


def flipped(content, at, bit):
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def test_the_round_of_a_manifest(run, tmp_path, refused):
    """4 becomes 6: a resume would have skipped two rounds."""
    path = run / "checkpoints/00000004/manifest.json"
    content = path.read_bytes()
    at = content.index(b'"round": 4') + len('"round": ')
    path.write_bytes(flipped(content, at, 1))
    assert b'"round": 6' in path.read_bytes()
    before = text(run)
    for words in (["resume", run, "rounds=9"], ["export", run, "-o", tmp_path / "x.npz"]):
        assert f"{path}: is damaged: " in refused(*words)
    for command in ("status", "report"):
        assert f"{path}: is damaged: " in refused(command, run)
    assert text(run) == before


def test_a_log_that_is_gone(run, refused):
    (run / "log.jsonl").unlink()
    for words in (["resume", run], ["report", run]):
        assert f"{run / 'log.jsonl'}: there is no such file, expected the log" in refused(*words)


def test_a_checkpoint_under_the_name_of_another_round(run, refused):
    """Its own checksum is right."""
    (run / "checkpoints/00000004").rename(run / "checkpoints/00000003")
    line = refused("resume", run, "rounds=9")
    assert "00000003/manifest.json: is damaged: " in line
    assert "its round is 4, expected that of its folder" in line


@pytest.mark.slow
def test_the_initial_model(run, tmp_path, refused):
    path, draw = run / "initial.npy", random.Random(0)
    content = path.read_bytes()
    for at in draw.sample(range(len(content) - np.load(path).nbytes, len(content)), 10):
        path.write_bytes(flipped(content, at, draw.randrange(8)))
        for words in (
            ["resume", run, "rounds=5"],
            ["resume", run, "rounds=5", "--out", tmp_path / "copy"],
            ["export", run, "-o", tmp_path / "x.npz"],
        ):
            line = refused(*words)
            assert line.startswith(f"StoreError: {path}: checksum ")
            assert line.endswith("; put it back, or run the job again into another directory")
    assert not (tmp_path / "copy").exists()


def test_a_resume_records_the_initial_model_as_it_was(run, tmp_path, hpcfl, refused):
    """Not as it lies there when a later checkpoint is committed."""
    assert hpcfl("resume", run, "rounds=6").code == 0
    copy = tmp_path / "copy"
    assert hpcfl("resume", run, "rounds=8", "--out", copy).code == 0
    for root in (run, copy):
        path = root / "initial.npy"
        path.write_bytes(flipped(path.read_bytes(), -1 + path.stat().st_size, 0))
        assert f"{path}: checksum " in refused("resume", root, "rounds=9")


@pytest.mark.slow
def test_the_best_model(run, tmp_path, hpcfl, refused):
    """Bits all over its file."""
    path, target = run / "checkpoints/00000004/best.safetensors", tmp_path / "x.npz"
    words = ("export", run, "--best", "-o", target)
    assert hpcfl(*words).code == 0
    expected, content = target.read_bytes(), path.read_bytes()
    draw = random.Random(0)
    for at in draw.sample(range(len(content)), 80):
        path.write_bytes(flipped(content, at, draw.randrange(8)))
        assert f"{path}: checksum " in refused(*words)
    assert target.read_bytes() == expected


def test_the_best_model_of_another_run(run, tmp_path, hpcfl, refused):
    """A file that is whole by itself, but not the run's."""
    other, name = tmp_path / "other", "checkpoints/00000004/best.safetensors"
    done = hpcfl("run", run / "job.yaml", "seed=1", "--out", other)
    assert done.code == 0
    (run / name).write_bytes((other / name).read_bytes())
    line = refused("export", run, "--best", "-o", tmp_path / "x.npz")
    assert f"{run / name}: checksum " in line
