"""Files that a person names to be written: what is no file stays, links are followed."""

import os
import socket
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest

from hpcfl.errors import JobError
from hpcfl.runs.names import NAMES
from hpcfl.runs.outputs import check_output, write_output

ANY = ("", ".npz", ".png")
LONG = "n" * 300


@pytest.fixture
def run(job, tmp_path, hpcfl):
    path = tmp_path / "run"
    assert hpcfl("run", job, "--out", path).code == 0
    return path


def made(kind, path):
    """Make something at ``path`` that is not a regular file."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # one as /dev/null, of our own
        except OSError as e:
            pytest.skip(f"no devices here: {e.strerror}")
    elif kind == "directory":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.fspath(path))
    return path


# Every option that names a file to be written, with the endings of the file.
OPTIONS = {
    "export": (["export", "RUN", "-o"], [".npz"]),
    "state": (["export", "RUN", "--state-dict"], [".safetensors"]),
    "split": (["data", "export-split", "JOB", "-o"], [".npz"]),
    "show": (["data", "show", "JOB", "--plot"], [".png", ".pdf", ".svg"]),
    "report": (["report", "RUN", "--plot"], [".png", ".pdf", ".svg"]),
    "sweep": (["report", "RUN", "--chosen", "--write-sweep"], [".yaml"]),
}
REPLACES = [option for option in OPTIONS if option != "sweep"]


def command(option, run, job, path):
    return [*({"RUN": run, "JOB": job}.get(word, word) for word in OPTIONS[option][0]), path]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["FIFO", "device", "directory"])
def test_what_is_no_file_stays(run, job, tmp_path, refused, monkeypatch, kind, option):
    monkeypatch.setattr("hpcfl.data.sources.arrays.Arrays.load", _no_work, raising=True)
    path = made(kind, tmp_path / f"out{OPTIONS[option][1][0]}")
    before = os.lstat(path)
    line = refused(*command(option, run, job, path))
    assert f"{path}: cannot be written: it is a {kind}, expected a file or a new name" in line
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


def _no_work(*_):
    raise AssertionError("the data are loaded before the file is looked at")


@pytest.mark.parametrize("option", REPLACES)
def test_a_link_is_followed(run, job, tmp_path, hpcfl, option):
    (tmp_path / "far").mkdir()
    ending = OPTIONS[option][1][0]
    target, link = tmp_path / "far" / f"target{ending}", tmp_path / f"link{ending}"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(Path("far") / target.name)
    done = hpcfl(*command(option, run, job, link))
    assert done.code == 0, done.err
    assert link.is_symlink()
    assert target.read_bytes()[:3] != b"old"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in target.parent.iterdir()] == [target.name]  # nothing is left


def test_a_link_to_a_file_that_is_not_there_yet(run, tmp_path, hpcfl):
    (tmp_path / "link.npz").symlink_to(tmp_path / "new.npz")
    assert hpcfl("export", run, "-o", tmp_path / "link.npz").code == 0
    assert (tmp_path / "link.npz").is_symlink()
    with np.load(tmp_path / "new.npz") as file:
        assert "x" in file


def test_links_to_what_is_no_file(tmp_path):
    made("FIFO", tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name, why in (("link", "it is a FIFO"), ("loop", "Too many levels of symbolic links")):
        with pytest.raises(JobError, match=f"{name}: cannot be written: {why}"):
            write_output(tmp_path / name, b"x", ANY)
    assert stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)


def test_a_socket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    made("socket", Path("s"))
    with pytest.raises(JobError, match="it is a socket"):
        check_output(Path("s"), ANY)


def test_an_open_pipe_by_its_name():
    """As -o /dev/stdout where a pipe takes the output."""
    reading, writing = os.pipe()
    try:
        with pytest.raises(JobError, match="it is a FIFO"):
            check_output(Path(f"/dev/fd/{writing}"), ANY)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (".", "it is a directory"),
        (LONG, "File name too long"),
        (f"{LONG}/x", "File name too long"),
        ("n" * 252, "a name has 252 bytes, at most 250 are possible"),
        ("none/x", "there is no directory"),
        ("file/x", "Not a directory"),
    ],
)
def test_paths_that_cannot_be(run, tmp_path, monkeypatch, refused, path, why):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    line = refused("export", run, "-o", path)
    assert f"cannot be written: {why}" in line
    with pytest.raises(JobError, match="cannot be written"):
        write_output(Path(path), b"x", ANY)


@pytest.mark.parametrize(
    "name", [f"{LONG}.png", f"{LONG}/x.png", "n" * 252 + "/x.png", "file/x.png"]
)
def test_a_folder_that_cannot_be_made(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"cannot be written: .*; choose another file"):
        check_output(tmp_path / name, ANY, make_folder=True)


def test_a_folder_of_someone_else(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o555)
        me = os.geteuid()
        if me == 0:
            try:
                os.seteuid(65534)
            except OSError:
                pytest.skip("this root may be nobody else, as in a user namespace")
        try:
            for make_folder in (False, True):
                path = folder / "new" / "x" if make_folder else folder / "x"
                with pytest.raises(JobError, match=f"no permission to write into {folder}"):
                    check_output(path, ANY, make_folder=make_folder)
        finally:
            if me == 0:
                os.seteuid(me)
        folder.chmod(0o755)


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_file_of_another_kind_stays(run, job, tmp_path, refused, option):
    """Also behind a link whose name has the right ending."""
    for name in ("base.yaml", "user.txt", "data.csv", "F.NPZ.bak", "w.safetensors", "x.npz"):
        (tmp_path / name).write_text("theirs")
    endings = OPTIONS[option][1]
    (tmp_path / "far").write_text("theirs")
    (tmp_path / f"link{endings[0]}").symlink_to("far")
    before = snapshot(tmp_path)
    others = [path for path in tmp_path.iterdir() if path.is_file() and path.suffix not in endings]
    for path in (*others, tmp_path / f"link{endings[0]}", tmp_path / "no_ending"):
        line = refused(*command(option, run, job, path))
        name = "far" if path.is_symlink() else path.name
        expected = f"found the name {name}, expected one in {' or '.join(endings)}; choose another"
        assert f"{path}: cannot be written: {expected}" in line
    assert snapshot(tmp_path) == before


def test_no_file_of_a_run_is_replaced(run, tmp_path):
    """Whatever its ending, there or not yet; new names beside them serve."""
    (tmp_path / "link").symlink_to(run)
    for name in NAMES["run"]:
        for path in (run / name, tmp_path / "link" / name, run / name / "below.npz"):
            if path.is_dir() or not path.parent.is_dir():
                continue
            with pytest.raises(JobError, match="the name is one of the files of a run or a sweep"):
                write_output(path, b"x", ["", ".yaml", ".jsonl", ".csv", *ANY])
    write_output(run / "model.npz", b"x", ANY)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_refuses_the_files_of_a_run(run, job, refused, option):
    before = snapshot(run)
    ending = OPTIONS[option][1][0]
    for path in (*before, run / "checkpoints" / f"x{ending}"):
        refused(*command(option, run, job, path))
    assert snapshot(run) == before


def test_no_file_of_a_sweep_is_replaced(job, tmp_path, hpcfl, refused):
    root, sweep = tmp_path / "runs", tmp_path / "s.yaml"
    sweep.write_text(f"job: {job}\ngrid: {{seed: [0]}}\n")
    assert hpcfl("sweep", sweep, "--out", root).code == 0
    for name in ("sweep.log", "lock", "seed0.yaml", "seed0.log"):
        with pytest.raises(JobError, match="the name is one of the files of a run or a sweep"):
            check_output(root / name, ["", ".log", ".yaml"])
    assert hpcfl("report", root, "--plot", root / "report.png").code == 0
    assert hpcfl("report", root, "--plot", root / "other.png").code == 0
    (root / "seed0.yaml").unlink()
    refused("report", root, "--chosen", "--write-sweep", root / "seed0.yaml")


def test_a_sweep_is_written_to_a_new_file(run, tmp_path, hpcfl, refused):
    path = tmp_path / "mine.yaml"
    words = ("report", run, "--chosen", "--write-sweep", path)
    path.write_text("theirs")
    assert f"--write-sweep: {path} is there; remove it, or choose another file" in refused(*words)
    assert path.read_text() == "theirs"
    path.unlink()
    assert hpcfl(*words).code == 0


def test_one_file_for_two(run, tmp_path, refused):
    both = tmp_path / "x.npz"
    (tmp_path / "y.safetensors").symlink_to("x.npz")
    refused("export", run, "-o", both, "--state-dict", tmp_path / "y.safetensors")
    assert not both.exists()


def test_nothing_is_left_of_an_interrupted_write(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_output(tmp_path / "x", b"x", ANY)
    assert not list(tmp_path.iterdir())
