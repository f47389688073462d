"""Inputs that changed, or that are not the same on all hosts, are refused."""

import os
from pathlib import Path

import numpy as np

from hpcfl.data.fingerprints import digest, shown
from hpcfl.data.sources.arrays import Arrays
from tests.forked import finish
from tests.parallel.background import rounds, write
from tests.parallel.outcome import outcome
from tests.rundirs import text

ROOT = Path(__file__).parents[2]


def make(folder, order=1):
    """Ten classes of six examples, their labels in one order or the other."""
    random = np.random.default_rng(0)
    y = np.arange(60) % 10
    x = random.standard_normal((60, 64)) + y[:, None]
    path = folder / "own.npz"
    np.savez(path, x=x, y=y[::order], x_test=x, y_test=y)
    return path


def job(folder, path):
    data = {"kind": "arrays", "path": str(path), "clients": 6, "partition": {"kind": "iid"}}
    model = {"name": "logistic"}
    return write(folder, data=data, model=model, rounds=6, checkpoint={"every": 2}, task=None)


def test_labels_that_changed_are_refused_on_any_number_of_ranks(tmp_path):
    run = tmp_path / "run"
    path = make(tmp_path)
    command = ("run", job(tmp_path, path), "--out", run, "--continue")
    assert finish(2, *command).returncode == 0
    before, content = outcome(run), path.read_bytes()
    make(tmp_path, order=-1)
    resume = ("resume", run, "rounds=8")
    for ranks, again in ((2, command), (3, resume), (1, (*resume, "--out", tmp_path / "b"))):
        ended = finish(ranks, *again)
        assert ended.returncode == 2, ended.stderr
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("DataError")]
        assert line.startswith(f"DataError: {path}: its content changed since {run} began (sha256")
        assert "Traceback" not in ended.stderr
    path.write_bytes(content)
    assert outcome(run) == before
    assert not (tmp_path / "b").exists()
    ended = finish(3, *resume)
    assert ended.returncode == 0, ended.stderr
    assert rounds(run) == 8


def test_a_host_with_another_copy_is_refused_at_every_start(tmp_path):
    """Rank 1 sees another file under the same path, as a copy on its node's own disk may be.

    On one host it would share what rank 0 loads, so every rank is made to load.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "from hpcfl.data.sources.arrays import Arrays\nArrays.maps_files = True\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    folders = [tmp_path / name for name in ("a", "b")]
    for folder, order in zip(folders, (1, -1), strict=True):
        folder.mkdir()
        make(folder, order)
    files = [folder / "own.npz" for folder in folders]
    digests = [shown(digest(Arrays(path=str(file)).load(0))) for file in files]
    here = "/proc/self/cwd/own.npz"  # every process has its own
    run = tmp_path / "run"
    command = ("run", job(tmp_path, here), "--out", run)

    def refused(*args):
        ended = finish(2, *args, env=env, folders=folders)
        assert ended.returncode == 2, ended.stderr
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("DataError")]
        assert line == (
            f"DataError: {here}: rank 1 on host {os.uname().nodename} reads another content "
            f"({digests[1]}) than rank 0 ({digests[0]}); copy the same files to every host"
        )
        assert "Traceback" not in ended.stderr

    refused(*command)
    assert not (run / "job.yaml").exists()
    same = [folders[0]] * 2
    ended = finish(2, *command, folders=same)
    assert ended.returncode == 0, ended.stderr
    before = text(run)
    refused(*command, "--continue")
    refused("resume", run, "rounds=8")
    assert text(run) == before
    ended = finish(2, "resume", run, "rounds=8", folders=same)
    assert ended.returncode == 0, ended.stderr
