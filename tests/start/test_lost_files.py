"""A run whose files are deleted or replaced while it is alive ends, and says what is gone."""

import os
import shutil
from pathlib import Path

import pytest

from hpcfl.runs.manifest import committed
from hpcfl.start.session import RankSession

pytestmark = pytest.mark.slow

JOB = ["rounds=8", "checkpoint={every: 2, keep: 1}"]
SHARED = "algorithm={name: localghb}"


@pytest.fixture
def disturbed(job, tmp_path, monkeypatch, hpcfl):
    """Play a job to which something happens: the checkpoint of round 4 is on its way in round 5."""
    out, record = tmp_path / "run", RankSession.record

    def play(happens, *overrides, command=("run",), at=5):
        def patched(self, entry, *more):
            record(self, entry, *more)
            if entry["round"] == at:
                happens(out)

        monkeypatch.setattr(RankSession, "record", patched)
        if command == ("run",):
            done = hpcfl("run", job, *JOB, *overrides, "--out", out)
        else:
            done = hpcfl(*command)
        monkeypatch.setattr(RankSession, "record", record)
        return out, done

    return play


def told(done):
    """The one line of the error."""
    assert done.code == 1, done.err
    assert not any("Traceback" in line for line in done.err)
    (line,) = [line for line in done.err if "Error" in line]
    assert line.startswith("LostFileError: ")
    assert line.endswith("or run the job again into another directory")
    return line


def delete(name):
    def happens(out):
        path = out / name
        if path.is_dir():
            # Away first: a checkpoint may be on its way, whose thread adds and renames files.
            aside = path.rename(out.with_name("aside"))
            shutil.rmtree(aside, ignore_errors=True)
        else:
            path.unlink()

    return happens


def replace(name):
    """By an equal file or folder of the same name."""

    def happens(out):
        path = out / name
        path.rename(aside := out.with_name("aside"))
        if aside.is_dir():
            shutil.copytree(aside, path, ignore=shutil.ignore_patterns("*.part"))
        else:
            shutil.copy(aside, path)

    return happens


NAMES = [
    *("stores", "checkpoints", "log.jsonl", "job.yaml", "initial.npy", "function.json"),
    *("lock", ""),
]


@pytest.mark.parametrize("happens", [delete, replace])
@pytest.mark.parametrize("name", NAMES, ids=[name or "all" for name in NAMES])
def test_a_file_or_folder_goes(disturbed, happens, name):
    out, done = disturbed(happens(name))
    what = "was deleted" if happens is delete else "was replaced by another"
    assert f"{out / name}: {what} while the run was alive" in told(done)
    if (happens, name) in ((delete, "checkpoints"), (delete, "")):
        return
    assert [found.round for found in committed(out / "checkpoints")] == [2]


@pytest.mark.parametrize("store", ["{kind: hdf5}", "{dir: DIR}"])
@pytest.mark.parametrize("happens", [delete, replace])
def test_a_segment_goes(disturbed, tmp_path, happens, store):
    def segment(out):
        first = min((out / "stores").rglob("*.h5"))
        happens(first.relative_to(out))(out)

    (tmp_path / "node").mkdir()
    chosen = store.replace("DIR", str(tmp_path / "node"))
    out, done = disturbed(segment, f"store={chosen}")
    assert f"{out / 'stores'}{os.sep}" in told(done)
    assert [found.round for found in committed(out / "checkpoints")] == [2]


def test_nothing_new_is_begun(disturbed):
    """The next checkpoint finds the loss before it makes a folder."""
    out, done = disturbed(delete("job.yaml"), at=4)
    assert f"{out / 'job.yaml'}: was deleted" in told(done)
    assert not (out / "checkpoints" / "00000004").exists()


def test_a_segment_of_shared_states_goes(disturbed):
    out, done = disturbed(delete("stores/shared"), SHARED)
    assert f"{out / 'stores' / 'shared'}{os.sep}" in told(done)


@pytest.mark.parametrize("name", ["job.yaml", "initial.npy"])
def test_a_file_is_written_to_in_place(disturbed, name):
    """By an editor that keeps the inode: a resume would refuse the file."""

    def append(out):
        with (out / name).open("ab") as file:
            file.write(b"#")

    out, done = disturbed(append)
    assert f"{out / name}: was changed while the run was alive" in told(done)
    assert [found.round for found in committed(out / "checkpoints")] == [2]


def test_the_end_of_a_run_does_not_hang_on_its_warnings(disturbed):
    """After the last commit nothing that is read makes a run fail that has done all its rounds."""

    def spoil(out):
        (out / "history.jsonl").unlink()

    out, done = disturbed(spoil)
    assert done.code == 0
    assert f"{out / 'history.jsonl'}: has no entry of this start any more" in done.err[-1]


@pytest.mark.parametrize("pattern", ["log.jsonl", "stores/*.h5"])
def test_a_file_is_cut(disturbed, pattern):
    def cut(out):
        path = next(out.glob(pattern))
        os.truncate(path, path.stat().st_size - 1)

    _, done = disturbed(cut)
    assert "it was changed while the run was alive" in told(done)


def test_a_resumed_run_notices_too(disturbed, job, hpcfl, tmp_path):
    out = tmp_path / "run"
    assert hpcfl("run", job, "rounds=2", "checkpoint={every: 2, keep: 1}", "--out", out).code == 0
    _, done = disturbed(delete("initial.npy"), command=("resume", out, "rounds=8"))
    assert f"{out / 'initial.npy'}: was deleted" in told(done)
    assert [found.round for found in committed(out / "checkpoints")] == [2]


def test_what_is_put_back_can_be_resumed(disturbed, hpcfl, job, tmp_path):
    """The error's advice works, and the bits are those of an undisturbed run."""
    out, done = disturbed(replace("stores"))
    told(done)
    shutil.rmtree(out / "stores")
    (tmp_path / "aside").rename(out / "stores")
    assert hpcfl("resume", out).code == 0
    whole = tmp_path / "whole"
    assert hpcfl("run", job, *JOB, "--out", whole).code == 0
    servers = [path / "checkpoints/00000008/server.safetensors" for path in (out, whole)]
    assert servers[0].read_bytes() == servers[1].read_bytes()


def test_no_file_stays_open(job, tmp_path, hpcfl):
    fds = Path("/proc/self/fd")
    before = len(list(fds.iterdir()))
    assert hpcfl("run", job, "--out", tmp_path / "run").code == 0
    assert len(list(fds.iterdir())) <= before
