"""A run goes on only from the inputs that it began with: data, splits, cohorts."""

import re
import shutil
from hashlib import sha256

import numpy as np
import pytest

import hpcfl as package
from hpcfl.data.fingerprints import digest, require_same
from hpcfl.data.sources.arrays import Arrays
from hpcfl.errors import DataError
from hpcfl.runs.branches import read_branches
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import committed
from tests.parallel.outcome import outcome
from tests.rundirs import text

OWN = """\
import numpy as np
import torch
from dataclasses import dataclass

from hpcfl.data.sources.arrays import cast
from hpcfl.data.base import DataConfig, Dataset
from hpcfl.types import Examples, PathText


@dataclass(frozen=True, kw_only=True)
class Table(DataConfig):
    path: PathText

    def load(self, seed):
        table = np.loadtxt(self.path)
        rows = Examples(torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1]).long())
        return Dataset(
            train=rows, test=None, natural=None, classes=2, loss="cross_entropy", transform=cast
        )
"""


def rewrite(path, **changes):
    """Replace arrays of an .npz by functions of them."""
    with np.load(path) as file:
        found = dict(file)
    np.savez(path, **{name: changes.get(name, lambda a: a)(array) for name, array in found.items()})


def other_cohorts(path):
    path.write_text("[[0, 3], [1, 3], [0, 1], [2, 3], [0, 2], [1, 3]]")


@pytest.fixture
def files(tmp_path):
    """Everything that a job may read beside its own file."""
    random = np.random.default_rng(0)
    y = np.arange(40) % 4
    x = random.standard_normal((40, 3)) + y[:, None]
    data, split, cohorts = (tmp_path / name for name in ("own.npz", "split.npz", "cohorts.json"))
    np.savez(data, x=x, y=y, x_test=x[:12], y_test=y[:12], client=np.arange(40) // 10)
    np.savez(split, client=np.arange(40) % 4)
    cohorts.write_text("[[0, 3], [1, 2], [0, 1], [2, 3], [0, 2], [1, 3]]")
    return data, split, cohorts


NATURAL = ("data.clients=null", "data.partition=null")
CHANGED = {
    "labels": ("own.npz", NATURAL, lambda path: rewrite(path, y=lambda y: y[::-1])),
    "inputs": ("own.npz", NATURAL, lambda path: rewrite(path, x=lambda x: x + 1)),
    "clients": ("own.npz", NATURAL, lambda path: rewrite(path, client=lambda c: c[::-1])),
    "test inputs": ("own.npz", NATURAL, lambda path: rewrite(path, x_test=lambda x: -x)),
    "test labels": ("own.npz", NATURAL, lambda path: rewrite(path, y_test=lambda y: 3 - y)),
    "split": (
        "split.npz",
        ("data.clients=null", "data.partition={{kind: file, path: {}/split.npz}}"),
        lambda path: rewrite(path, client=lambda c: c[::-1]),
    ),
    "cohorts": (
        "cohorts.json",
        (*NATURAL, "cohort={{kind: replay, path: {}/cohorts.json}}"),
        other_cohorts,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGED)
def test_what_changed_since_is_refused_by_every_way_to_go_on(
    what, job, files, tmp_path, hpcfl, refused
):
    name, settings, change = CHANGED[what]
    words = [f"data.path={files[0]}", *(word.format(tmp_path) for word in settings)]
    run, changed = tmp_path / "run", tmp_path / name
    assert hpcfl("run", job, *words, "--out", run).code == 0
    whole = outcome(run)
    shutil.rmtree(run / "checkpoints/00000004")  # as a kill after round 2 leaves it
    before, content = text(run), changed.read_bytes()
    change(changed)
    line = refused("resume", run)
    assert re.fullmatch(
        rf"DataError: {changed}: its content changed since {run} began \(sha256 \w{{12}} now, "
        r"sha256 \w{12} then\); put it back, or run the job again into another directory",
        line,
    )
    assert refused("resume", run, "--no-verify") == line
    assert refused("resume", run, "rounds=6") == line
    assert refused("resume", run, "--round", "2") == line
    assert refused("resume", run, "--out", tmp_path / "copy") == line
    assert refused("run", job, *words, "--out", run, "--continue") == line
    assert text(run) == before
    assert not list(tmp_path.glob("copy*"))
    changed.write_bytes(content)
    assert hpcfl("resume", run).code == 0
    assert outcome(run) == whole
    change(changed)
    assert refused("resume", run) == line  # a finished run, too


def test_every_checkpoint_records_the_inputs(job, files, tmp_path, hpcfl):
    data, split, cohorts = files
    words = (
        f"data.path={data}",
        "data.clients=null",
        f"data.partition={{kind: file, path: {split}}}",
        f"cohort={{kind: replay, path: {cohorts}}}",
    )
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert hpcfl("run", job, *words, "--out", run).code == 0
    keys = {"cohort.path": cohorts, "data.partition.path": split, "data.path": data}
    expected = {k: f"sha256:{sha256(f.read_bytes()).hexdigest()}" for k, f in keys.items()}
    expected["data.path"] = digest(Arrays(path=str(data)).load(0))
    assert [found.inputs for found in committed(run / "checkpoints")] == [expected, expected]
    assert hpcfl("resume", run, "--round", "2", "--out", copy).code == 0
    assert [found.inputs for found in committed(copy / "checkpoints")] == [expected, expected]
    said = hpcfl("check", job, *words, "--data").out
    assert said[-3:] == [
        f"{title:<11} {name}: sha256 {digest[7:19]}..."
        for title, (name, digest) in zip(("inputs", "", ""), expected.items(), strict=True)
    ]


@pytest.fixture
def moved(job, files, tmp_path, hpcfl):
    """A run that reads three files, as a kill after round 2 leaves it; their new places."""
    data, split, cohorts = files
    run, there = tmp_path / "run", tmp_path / "there"
    words = (
        f"data.path={data}",
        "data.clients=null",
        f"data.partition={{kind: file, path: {split}}}",
        f"cohort={{kind: replay, path: {cohorts}}}",
    )
    assert hpcfl("run", job, *words, "--out", run).code == 0
    whole = outcome(run)
    shutil.rmtree(run / "checkpoints/00000004")
    there.mkdir()
    for file in files:
        shutil.copyfile(file, there / file.name)
    places = [f"data.path={there}/own.npz", f"data.partition.path={there}/split.npz"]
    return run, whole, [*places, f"cohort.path={there}/cohorts.json"]


def test_inputs_may_move(moved, files, tmp_path, hpcfl, refused):
    run, whole, places = moved
    for file in files:
        file.unlink()
    assert "own.npz" in refused("resume", run)
    rewrite(tmp_path / "there/own.npz", y=lambda y: y[::-1])
    line = refused("resume", run, *places)
    assert line.startswith(f"DataError: {tmp_path}/there/own.npz: has another content (sha256 ")
    assert f" than {files[0]} had when {run} began (" in line
    rewrite(tmp_path / "there/own.npz", y=lambda y: y[::-1])
    copy = tmp_path / "copy"
    said = hpcfl("resume", run, *places, "--out", copy)
    assert said.code == 0
    assert not (copy / "branches.json").exists()
    assert outcome(copy) == whole
    assert hpcfl("resume", run, *places).code == 0
    assert outcome(run) == whole
    last = RunDir(run).last_start
    assert {change["key"] for change in last["changes"]} == {word.split("=")[0] for word in places}
    assert hpcfl("resume", run, "rounds=5").code == 0  # the places are the run's now


def test_inputs_may_move_in_a_branch(moved, files, tmp_path, hpcfl):
    run, _, places = moved
    for file in files:
        file.unlink()
    branch = tmp_path / "branch"
    assert hpcfl("resume", run, *places, "local.lr=0.5", "--out", branch).code == 0
    (entry,) = read_branches(branch / "branches.json")
    assert [change["key"] for change in entry.changes] == ["local.lr"]


def test_another_file_is_no_moved_one(moved, files, refused):
    """The data for the split, and the split for the data."""
    run, _, _ = moved
    data, split, _ = files
    assert str(data) in refused("resume", run, f"data.partition.path={data}")
    assert str(split) in refused("resume", run, f"data.path={split}")


def test_the_same_content_is_the_same_file(job, tmp_path, hpcfl):
    """Copied back from an archive: other times, another inode."""
    run, data = tmp_path / "run", tmp_path / "data.npz"
    assert hpcfl("run", job, "--out", run).code == 0
    copy = shutil.copyfile(data, tmp_path / "kept")
    data.unlink()
    copy.rename(data)
    assert hpcfl("resume", run).code == 0


def test_data_of_a_class_of_the_user(job, tmp_path, hpcfl, refused, monkeypatch):
    (tmp_path / "own_table.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    table = np.column_stack([np.random.default_rng(0).standard_normal((40, 3)), np.arange(40) % 2])
    np.savetxt(tmp_path / "table.txt", table)
    data = f"{{kind: own_table.Table, path: {tmp_path}/table.txt, clients: 4}}"
    run = tmp_path / "run"
    assert hpcfl("run", job, f"data={data}", "--out", run).code == 0
    assert hpcfl("resume", run, "rounds=5").code == 0
    np.savetxt(tmp_path / "table.txt", table[::-1])
    line = refused("resume", run, "rounds=6")
    assert line.startswith(f"DataError: {tmp_path}/table.txt: its content changed since {run} ")


def test_a_run_of_a_version_that_named_its_inputs_otherwise(job, tmp_path, hpcfl):
    run = tmp_path / "run"
    assert hpcfl("run", job, "--out", run).code == 0
    found = committed(run / "checkpoints")[-1].inputs
    places = {"data.path": f"{tmp_path}/data.npz"}
    with pytest.raises(DataError) as caught:
        require_same({"data.root/a.npz": "sha256:1"}, found, places, places, run)
    assert str(caught.value) == (
        f"{run}: began with the inputs data.root/a.npz, which are now data.path: another version "
        "of hpcfl recorded them; resume with that version, or run the job again into another "
        "directory"
    )


def test_from_python(job, tmp_path):
    run = tmp_path / "run"
    package.run(job, out=run)
    rewrite(tmp_path / "data.npz", y=lambda y: y[::-1])
    for again in (lambda: package.resume(run), lambda: package.run(job, out=run, continued=True)):
        with pytest.raises(DataError, match=r"data\.npz: its content changed since"):
            again()
