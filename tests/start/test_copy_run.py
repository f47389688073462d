"""Runs taken up again in a copy, which is complete or not there at all."""

import errno
import os
import shutil

import pytest

from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import rounds
from hpcfl.start import copy_run
from tests.parallel.outcome import outcome
from tests.rundirs import damage_a_row, flip, segment, starts, text

pytestmark = pytest.mark.slow


@pytest.fixture
def run(job, tmp_path, hpcfl):
    """A run of four rounds, of which 2 and 4 are kept."""
    out = tmp_path / "run"
    assert hpcfl("run", job, "--out", out).code == 0
    return out


@pytest.mark.parametrize("name", ["fedhbm", "localghb", "fedavg"])
def test_a_branch_is_as_good_as_the_run(job, tmp_path, hpcfl, name):
    """It goes on by itself; the original is only read."""
    source, copy = tmp_path / "run", tmp_path / "deep" / "copy"
    assert hpcfl("run", job, f"algorithm={{name: {name}}}", "--out", source).code == 0
    before = text(source)
    done = hpcfl("resume", source, "rounds=9", "--out", copy)
    assert done.code == 0, done.err
    assert text(source) == before
    assert not list(copy.parent.glob("*.part"))
    assert hpcfl("resume", source, "rounds=9").code == 0
    assert outcome(copy) == outcome(source)
    assert (copy / "job.yaml").read_bytes() == (source / "job.yaml").read_bytes()
    first, branched, again = starts(copy)
    assert first == starts(source)[0]
    known = {"time": 0, "crc32": 0, "branch_of": str(source), "round": 4}
    known |= {"request": {"round": None, "overrides": ["rounds=9"]}}
    assert branched | {"time": 0, "crc32": 0} == known
    assert again["changes"] == [{"key": "rounds", "before": 4, "after": 9}]
    assert f"branch      of {source} at round 4" in hpcfl("status", copy).out


def test_a_branch_of_an_older_round(run, tmp_path, hpcfl):
    copy = tmp_path / "copy"
    done = hpcfl("resume", run, "--round", 2, "--out", copy, "rounds=3")
    assert done.code == 0, done.err
    assert rounds(run / "checkpoints") == [2, 4]
    found, whole = outcome(copy), outcome(run)
    assert found.log[:3] == whole.log[:3]
    assert found.log[3]["train_loss"] == whole.log[3]["train_loss"]
    assert found.round == 3


def test_an_existing_copy_is_refused(run, tmp_path, refused):
    (tmp_path / "copy").mkdir()
    line = refused("resume", run, "--out", tmp_path / "copy")
    assert f"{tmp_path / 'copy'}: exists already" in line
    assert not any((tmp_path / "copy").iterdir())


@pytest.mark.parametrize("setting", ["rounds=6", "local.lr=0.01"])
def test_the_command_that_made_a_copy_is_told_how_to_go_on(run, tmp_path, refused, hpcfl, setting):
    copy, asked = tmp_path / "copy", ("--round", 2, setting)
    command = ("resume", run, "--out", copy)
    assert hpcfl(*command, *asked).code == 0
    line = refused(*command, *asked)
    assert line.endswith(f"the same command made it; to go on: `hpcfl resume {copy}`")
    assert "the same command" not in refused(*command, setting)
    # A batch script goes on.
    words = (run, "--out", copy, "--round", "2", setting)
    begun = hpcfl("batch", "begin", "--first", "7", *map(str, words))
    assert (begun.code, f"words=(resume {copy})" in begun.out) == (0, True)


def test_a_refused_branch_leaves_nothing(run, tmp_path, refused):
    for args in (["seed=7"], ["rounds=1"], ["--round", 3]):
        refused("resume", run, "--out", tmp_path / "copy", *args)
        assert not list(tmp_path.glob("*copy*"))


def test_a_branch_of_a_live_run(run, tmp_path, hpcfl):
    with RunDir(run) as folder:
        folder.lock()
        assert hpcfl("resume", run, "--out", tmp_path / "copy").code == 0
    assert outcome(tmp_path / "copy") == outcome(run)


def test_a_run_that_goes_on_while_it_is_copied(run, tmp_path, monkeypatch, refused):
    """It lets go of the checkpoint, and writes over its rows."""
    copy_segment = copy_run._copy

    def overtaken(source, target):
        shutil.rmtree(run / "checkpoints" / "00000004")
        flip(source, -1)
        copy_segment(source, target)

    monkeypatch.setattr(copy_run, "_copy", overtaken)
    line = refused("resume", run, "--out", tmp_path / "copy")
    assert "the run deleted the checkpoint of round 4 while it was copied" in line
    assert not list(tmp_path.glob("*copy*"))


def test_a_copy_with_a_damaged_row_never_appears(run, tmp_path, refused):
    row, client = damage_a_row(run)
    line = refused("resume", run, "--out", tmp_path / "copy", "--no-verify")
    assert f"{segment(run)}: row {row} (client {client}): found checksum" in line
    assert line.endswith(f"; the one before: `hpcfl resume {run} --round 2`")
    assert not list(tmp_path.glob("*copy*"))


@pytest.mark.parametrize("name", ["log.jsonl", "initial.npy"])
def test_a_run_without_all_of_its_files_is_not_copied(run, tmp_path, refused, name):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: len(content) // 2])
    assert f"{run / name}: " in refused("resume", run, "--out", tmp_path / "copy")
    assert not list(tmp_path.glob("*copy*"))


def test_a_branch_of_the_very_beginning(run, tmp_path, hpcfl):
    """Before the first round there may be no log yet."""
    copy = tmp_path / "copy"
    assert hpcfl("run", run / "job.yaml", "checkpoint.keep=9", "--out", tmp_path / "all").code == 0
    assert hpcfl("resume", tmp_path / "all", "--round", 0, "--out", copy).code == 0
    assert outcome(copy) == outcome(run)


@pytest.mark.parametrize(
    "names", [["job.yaml"], ["lock", "job.yaml.part"], ["lock", "initial.npy"]]
)
def test_what_a_killed_copy_left_is_cleared(run, tmp_path, hpcfl, names):
    left = tmp_path / ".copy.part"
    (left / "stores").mkdir(parents=True)
    (left / "stores" / "0badf00d-r0000-s0000.h5").write_text("half")
    for name in names:
        (left / name).write_text("half")
    assert hpcfl("resume", run, "--out", tmp_path / "copy").code == 0
    assert outcome(tmp_path / "copy") == outcome(run)
    assert not left.exists()


def test_two_copies_to_one_place_at_once(run, tmp_path, refused):
    """The second leaves alone what the first is at."""
    left = RunDir(tmp_path / ".copy.part")
    left.root.mkdir()
    left.job.write_text("half")
    with left:
        left.lock()
        line = refused("resume", run, "--out", tmp_path / "copy", code=75)
        assert f"{left.root}: another start that copies is alive in this directory" in line
        assert left.job.read_text() == "half"


def test_a_copy_that_finds_no_room(run, tmp_path, monkeypatch, hpcfl):
    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(copy_run.shutil, "copyfileobj", full)
    done = hpcfl("resume", run, "--out", tmp_path / "copy")
    assert done.code == 74
    (line,) = [line for line in done.err if "Error" in line]
    assert ".h5: cannot write: No space left on device; make room or repair the disk" in line
    assert not list(tmp_path.glob("*copy*"))
