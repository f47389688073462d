"""Files that a person names to be written: what is no file stays, links are followed."""

import os
import socket
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest

from hpcfl.errors import JobError
from hpcfl.io.atomic import check_output, write_output

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


def commands(run, job, path):
    """Every option that names a file to be written."""
    return [
        ["export", run, "-o", path],
        ["export", run, "--state-dict", path],
        ["data", "export-split", job, "-o", path],
        ["data", "show", job, "--plot", path],
        ["report", run, "--plot", path],
    ]


NAMES = ("export", "state", "split", "show", "report")


@pytest.mark.parametrize("at", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("kind", ["FIFO", "device", "directory"])
def test_what_is_no_file_stays(run, job, tmp_path, refused, monkeypatch, kind, at):
    monkeypatch.setattr("hpcfl.data.sources.arrays.Arrays.load", _no_work, raising=True)
    path = made(kind, tmp_path / "out.png")
    before = os.lstat(path)
    line = refused(*commands(run, job, path)[at])
    assert f"{path}: cannot be written: it is a {kind}, expected a file or a new name" in line
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


def _no_work(*_):
    raise AssertionError("the data are loaded before the file is looked at")


@pytest.mark.parametrize("at", range(len(NAMES)), ids=NAMES)
def test_a_link_is_followed(run, job, tmp_path, hpcfl, at):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target.png", tmp_path / "link.png"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(Path("far") / target.name)
    done = hpcfl(*commands(run, job, link)[at])
    assert done.code == 0, done.err
    assert link.is_symlink()
    assert target.read_bytes()[:3] != b"old"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in target.parent.iterdir()] == [target.name]  # nothing is left


def test_a_link_to_a_file_that_is_not_there_yet(run, tmp_path, hpcfl):
    (tmp_path / "link").symlink_to(tmp_path / "new.npz")
    assert hpcfl("export", run, "-o", tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink()
    with np.load(tmp_path / "new.npz") as file:
        assert "x" in file


def test_links_to_what_is_no_file(tmp_path):
    made("FIFO", tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name, why in (("link", "it is a FIFO"), ("loop", "Too many levels of symbolic links")):
        with pytest.raises(JobError, match=f"{name}: cannot be written: {why}"):
            write_output(tmp_path / name, b"x")
    assert stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)


def test_a_socket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    made("socket", Path("s"))
    with pytest.raises(JobError, match="it is a socket"):
        check_output(Path("s"))


def test_an_open_pipe_by_its_name():
    """As -o /dev/stdout where a pipe takes the output."""
    reading, writing = os.pipe()
    try:
        with pytest.raises(JobError, match="it is a FIFO"):
            check_output(Path(f"/dev/fd/{writing}"))
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
        write_output(Path(path), b"x")


@pytest.mark.parametrize(
    "name", [f"{LONG}.png", f"{LONG}/x.png", "n" * 252 + "/x.png", "file/x.png"]
)
def test_a_folder_that_cannot_be_made(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"cannot be written: .*; choose another file"):
        check_output(tmp_path / name, make_folder=True)


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
                    check_output(path, make_folder=make_folder)
        finally:
            if me == 0:
                os.seteuid(me)
        folder.chmod(0o755)


def test_one_file_for_two(run, tmp_path, refused):
    both = tmp_path / "x"
    (tmp_path / "y").symlink_to("x")
    assert "give two files" in refused("export", run, "-o", both, "--state-dict", tmp_path / "y")


def test_nothing_is_left_of_an_interrupted_write(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_output(tmp_path / "x", b"x")
    assert not list(tmp_path.iterdir())
