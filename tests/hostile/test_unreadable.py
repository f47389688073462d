"""Files of a run that cannot be read: one line that names them, no traceback.

The exit code is 2, or 74 where the disk fails.

Permissions and errors of the disk are made here, as root may read everything; a folder, or a link
that leads in a circle, in place of a file stops root too.
"""

import builtins
import errno
import io
import os
import pathlib
import shutil

import h5py
import pytest
import torch

from hpcfl.checkpoint import buffers
from hpcfl.clients.sampling import Replay
from hpcfl.data import archives, fingerprints, hdf5
from hpcfl.data.download import PublishedFile, quiet
from hpcfl.data.idx import read_idx
from hpcfl.data.sources import cifar, concrete, huggingface, tiny_imagenet
from hpcfl.data.sources.cifar10 import Cifar10
from hpcfl.errors import DiskError, JobError
from hpcfl.io import heartbeat
from hpcfl.io.files import read_array
from hpcfl.runs.job_file import yaml_file
from hpcfl.runs.layout import RunDir
from hpcfl.runs.sweep_log import SweepLog, read_sweep_log
from hpcfl.tools.report.collect import find_runs
from tests.long_form import long_form

pytestmark = pytest.mark.slow

COMMANDS = {
    "status": ["status"],
    "report": ["report", "--format", "csv"],
    "export": ["export", "--clients", "-o", "x.npz"],
    "best": ["export", "--best", "-o", "x.npz"],
    "resume": ["resume", "rounds=5"],
}
NEWEST = "checkpoints/00000004"
READ_BY = {
    "job.yaml": {*COMMANDS},
    "log.jsonl": {"status", "report", "resume"},
    "history.jsonl": {"status", "resume"},
    "initial.npy": {"export", "best", "resume"},
    f"{NEWEST}/best.safetensors": {"best", "resume"},
    f"{NEWEST}/manifest.json": {*COMMANDS},
    f"{NEWEST}/server.safetensors": {"export", "best", "resume"},
    f"{NEWEST}/rows-0000.npz": {"export", "best", "resume"},
    "stores/*.h5": {"export", "resume"},
    "checkpoints": {*COMMANDS},
    "stores": {"export", "resume"},
    "function.json": {"export", "best", "resume"},
}


@pytest.fixture
def run(job, tmp_path, hpcfl, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    assert hpcfl("run", job, "evaluate={every: 1, best: true}", "--out", out).code == 0
    return out


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def folder_in_place(path, monkeypatch):
    remove(path)
    path.mkdir()


def file_in_place(path, monkeypatch):
    remove(path)
    path.write_text("a file")


def loop_in_place(path, monkeypatch):
    remove(path)
    path.symlink_to(path)


def failing(number):
    """What makes every call that opens or lists the path fail so."""

    def make(path, monkeypatch):
        def wrapped(call):
            def refuse(name=".", *args, **kwargs):
                if isinstance(name, str | os.PathLike) and pathlib.Path(name) == path:
                    raise OSError(number, os.strerror(number), os.fspath(name))
                return call(name, *args, **kwargs)

            return refuse

        for module, names in (
            (os, ("open", "listdir", "scandir", "truncate")),
            (io, ("open",)),
            (builtins, ("open",)),
        ):
            for name in names:
                monkeypatch.setattr(module, name, wrapped(getattr(module, name)))
        whole = h5py.File

        def file(name, *args, **kwargs):
            return wrapped(lambda name: whole(name, *args, **kwargs))(name)

        monkeypatch.setattr(h5py, "File", file)

    return make


FAULTS = {
    "folder": folder_in_place,
    "file": file_in_place,
    "loop": loop_in_place,
    "permission": failing(errno.EACCES),
    "disk": failing(errno.EIO),
}


NOT_LISTED_BY = {"stores": {"export"}}  # it opens the files of the folder by their names


def played():
    """Every file with every fault; in CI with a disk that fails and one other fault in turn."""
    others = [fault for fault in FAULTS if fault != "disk"]
    for number, name in enumerate(READ_BY):
        for fault in FAULTS:
            sampled = fault in ("disk", others[number % len(others)])
            yield pytest.param(name, fault, marks=() if sampled else long_form)


@pytest.mark.parametrize(("name", "fault"), list(played()))
def test_one_line(run, hpcfl, monkeypatch, name, fault):
    (path,) = run.glob(name)
    if (fault == "folder" and path.is_dir()) or (fault == "file" and path.is_file()):
        pytest.skip("it is one already")
    with monkeypatch.context() as patch:
        FAULTS[fault](path, patch)
        ends = {key: hpcfl(words[0], run, *words[1:]) for key, words in COMMANDS.items()}
    code = 74 if fault == "disk" else 2
    listing = NOT_LISTED_BY.get(name, set()) if fault in ("permission", "disk") else set()
    for command in READ_BY[name] - listing:
        done = ends[command]
        assert done.code == code, (command, done)
        assert len(done.err) == 1, (command, done.err)
        assert str(path) in done.err[0], (command, done.err)
        assert not done.out
    for command in COMMANDS.keys() - READ_BY[name]:
        done = ends[command]
        assert done.code in (0, code), (command, done)
        assert done.code == 0 or str(path) in done.err[-1], (command, done.err)
        assert not any("Traceback" in line for line in done.err)


def test_an_older_checkpoint_is_offered_where_the_disk_fails(run, hpcfl, monkeypatch):
    failing(errno.EIO)(run / NEWEST / "server.safetensors", monkeypatch)
    done = hpcfl("resume", run, "rounds=5")
    assert done.code == 74
    assert done.err[0].endswith(f"; the one before: `hpcfl resume {run} --round 2`")


def open_hdf5(path):
    with hdf5.opened(path):
        pass


def read_as_huggingface(path):
    with huggingface._package_errors(str(path)):
        path.read_bytes()


READERS = {
    "archive": lambda path: archives._unpack(path, lambda name: None, quiet),
    "arrays": read_array,
    "buffers": lambda path: buffers.read(path, {"mean": torch.zeros(1)}),
    "checksum": lambda path: PublishedFile(path.name, "", md5="00").check(path, quiet),
    "concrete": concrete._table,
    "cohorts": lambda path: Replay(path=str(path)).cohorts,
    "hdf5": open_hdf5,
    "heartbeats": lambda path: heartbeat.read_all(path.parent),
    "huggingface": read_as_huggingface,
    "idx": lambda path: read_idx(path, ()),
    "input": fingerprints._of_file,
    "job": yaml_file.read,
    "cifar": lambda path: cifar._official(path.parent, {path.name: "00"}, Cifar10.layout),
    "sweep": lambda path: read_sweep_log(path.parent),
    "tiny_imagenet": lambda path: list(tiny_imagenet._annotated(path, {})),
}
NAMES = {"heartbeats": "0000.json", "sweep": "sweep.log"}


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, DiskError), (errno.EACCES, JobError)])
@pytest.mark.parametrize("reader", READERS)
def test_a_disk_that_fails_is_told_from_a_file_that_is_wrong(
    tmp_path, monkeypatch, reader, number, kind
):
    path = tmp_path / NAMES.get(reader, "file")
    path.write_bytes(b"anything")
    failing(number)(path, monkeypatch)
    with pytest.raises(kind, match=path.name):
        READERS[reader](path)


def test_a_folder_of_runs_on_a_disk_that_fails(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    failing(errno.EIO)(tmp_path / "runs", monkeypatch)
    with pytest.raises(DiskError, match="runs: cannot be listed: Input/output error"):
        find_runs(tmp_path / "runs")


def test_a_folder_of_runs_tells_which_cannot_be_read(run, tmp_path, hpcfl, refused):
    """The others are told all the same; a report, which would lack a run, is refused."""
    runs = tmp_path / "runs"
    for name in ("a", "b"):
        shutil.copytree(run, runs / name)
    loop_in_place(runs / "b" / "job.yaml", None)
    done = hpcfl("status", runs)
    assert done.code == 0
    assert done.out[0] == "finished          4 of 4  a"
    assert done.out[1].startswith(
        f"damaged      {runs}/b/job.yaml: cannot be read: Too many levels"
    )
    assert f"{runs}/b/job.yaml: cannot be read" in refused("report", runs)


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_folder_that_cannot_be_listed(run, tmp_path, refused, monkeypatch, command):
    runs = tmp_path / "runs"
    shutil.copytree(run, runs / "a")
    failing(errno.EACCES)(runs, monkeypatch)
    assert f"{runs}: cannot be listed: Permission denied; repair" in refused(command, runs)


@pytest.mark.parametrize("fault", ["folder", "loop", "permission", "disk"])
@pytest.mark.parametrize("command", ["status", "report"])
def test_the_log_of_a_sweep(run, tmp_path, hpcfl, monkeypatch, fault, command):
    runs = tmp_path / "runs"
    shutil.copytree(run, runs / "a")
    (runs / "sweep.log").write_text("")
    FAULTS[fault](runs / "sweep.log", monkeypatch)
    done = hpcfl(command, runs)
    assert (done.code, len(done.err)) == (74 if fault == "disk" else 2, 1)
    assert f"{runs}/sweep.log: cannot be read: " in done.err[0]


def test_the_log_of_a_sweep_that_was_killed_in_a_line(run, tmp_path, hpcfl, refused):
    """The line is completed; a line break that became another character is not."""
    runs = tmp_path / "runs"
    shutil.copytree(run, runs / "a")
    log = runs / "sweep.log"
    written = SweepLog(runs, io.StringIO())
    written.write("failed", "b", "exit code 1: why")
    written.write("failed", "c", "exit code 1: another reason")
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    for size in range(len(lines[0] + lines[1]), len(whole) + 1):
        log.write_bytes(whole[:size])
        SweepLog(runs, io.StringIO()).write("failed", "d", "exit code 3: nan")
        assert read_sweep_log(runs).failed.keys() - {"c"} == {"b", "d"}
    for bit in range(8):
        log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1 << bit]))
        assert "sweep.log:3: its end is damaged" in refused("status", runs)


def test_the_log_of_a_sweep_of_an_earlier_version(run, tmp_path, refused):
    """It is told once, not line by line, and a sweep does not append to it."""
    runs = tmp_path / "runs"
    shutil.copytree(run, runs / "a")
    log = runs / "sweep.log"
    log.write_text(
        "2026-11-20 12:00:00 started  a: log a.log\n"
        "2026-11-20 12:00:01 failed   a: exit code 1: why\n"
    )
    before = log.read_bytes()
    told = f"{log}: none of its lines ends with a checksum, expected one in each: another version"
    for command in ("status", "report"):
        line = refused(command, runs)
        assert told in line
        assert line.endswith("remove the file, the runs themselves stay")
    with pytest.raises(JobError, match="another version of hpcfl wrote it"):
        SweepLog(runs, io.StringIO())
    assert log.read_bytes() == before


LONG = "x" * 5000


@pytest.mark.parametrize(
    "words",
    [
        *(["status", LONG], ["report", LONG], ["resume", LONG], ["check", LONG]),
        *(["export", LONG, "-o", "x.npz"], ["export", "run", "-o", LONG], ["run", LONG]),
        *(["export", "run", "-o", "."], ["export", "run", "--state-dict", ".."]),
        *(["export", "run", "-o", "/"], ["run", "job.yaml", "--out", LONG], ["sweep", LONG]),
        ["resume", "run", "--out", LONG],
        *(["data", "export-split", "job.yaml", "-o", "."], ["report", "run", "--plot", "."]),
        *(["data", "export-split", "job.yaml", "-o", LONG], ["report", "run", "--plot", LONG]),
        *(["report", "run", "--plot", f"{LONG}.png"], ["export", "run", "-o", f"{LONG}/x.npz"]),
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)
def test_names_that_cannot_be(run, hpcfl, words):
    done = hpcfl(*words)
    assert (done.code, len(done.err)) == (2, 1), done.err
    assert "Error: " in done.err[0]
    assert RunDir(run).has_checkpoint
