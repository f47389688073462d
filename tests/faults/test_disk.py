"""A disk that is full, fails or is read-only: one clear line, then a resume with the same bits."""

import os
import subprocess
from functools import partial

import pytest
from deny import deny_from
from scaffold_run import complete, error_line, killed, write

from hpcfl.runs.layout import RunDir
from hpcfl.tools.selftest import outcome
from tests.forked import finish
from tests.long_form import long_form

STRERROR = {
    "ENOSPC": "No space left on device",
    "EIO": "Input/output error",
    "EDQUOT": "Disk quota exceeded",
    "EROFS": "Read-only file system",
}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write(tmp_path_factory.mktemp("job"), store={"cache_gib": 0.0})


@pytest.fixture(scope="module")
def whole(job, tmp_path_factory):
    """What the undisturbed run left, and how many bytes."""
    root = tmp_path_factory.mktemp("whole") / "run"
    assert finish(1, "run", job, "--out", root).returncode == 0
    size = sum(path.stat().st_blocks for path in root.rglob("*")) * 512
    return outcome(RunDir(root)), size


NEEDED = {"write", "pwrite", "sync", "rename", "open"}  # no run does without


@pytest.mark.parametrize("nth", [1, 20, 45])
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("write", "ENOSPC"),
        ("pwrite", "ENOSPC"),
        ("pwrite", "EDQUOT"),
        ("sync", "EIO"),
        ("rename", "EIO"),
        ("mkdir", "ENOSPC"),
        ("remove", "EIO"),
        ("size", "ENOSPC"),
        ("open", "EROFS"),
    ],
)
def test_calls_that_fail_from_some_moment_on(job, whole, tmp_path, kind, error, nth):
    folder = RunDir(tmp_path / "run")
    fault = partial(deny_from, folder.root, nth, kind, error)
    ended = finish(1, "run", job, "--out", folder.root, prepare=fault)
    assert ended.returncode or kind not in NEEDED
    if ended.returncode:
        assert ended.returncode == 74, ended
        assert STRERROR[error] in error_line(ended)
    assert complete(folder, job).differences(whole[0]) == []


def deny_on(rank, *fault):
    """From some moment on, on one rank."""
    if os.environ["RANK"] == str(rank):
        deny_from(*fault)


@pytest.mark.parametrize(
    ("rank", "nth"),
    [
        *((0, 45), (1, 14)),
        *(pytest.param(0, n, marks=long_form) for n in (1, 14, 26)),
        *(pytest.param(1, n, marks=long_form) for n in (1, 8, 26)),
    ],
)
def test_a_disk_that_stays_bad_for_one_rank(tmp_path, rank, nth):
    """That rank cannot even make the report by which the other ends; both end with one code."""
    folder = RunDir(tmp_path / "run")
    job = write(tmp_path, store={"cache_gib": 0.0}, comm={"backend": "gloo", "timeout_s": 60.0})
    fault = partial(deny_on, rank, folder.root, nth, "open", "EROFS")
    ended = finish(2, "run", job, "--out", folder.root, prepare=fault)  # with one exit code
    assert ended.returncode == 74, ended
    (line,) = [line for line in ended.stderr.splitlines() if "Error: " in line]
    assert STRERROR["EROFS"] in line
    assert "Traceback" not in ended.stderr


@pytest.fixture
def mount(tmp_path):
    """Mount a small file system, or mount it again, with options."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    place = tmp_path / "small"
    place.mkdir()

    def mounted(options):
        again = ["-o", f"remount,{options}"] if place.is_mount() else ["-o", options]
        done = subprocess.run(
            ["mount", "-t", "tmpfs", *again, "tmpfs", place], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"mount: {done.stderr.strip()}")
        return place

    yield mounted
    if place.is_mount():
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
def test_a_file_system_that_is_too_small(job, whole, mount, share):
    size = int(share * whole[1])
    folder = RunDir(mount(f"size={size}") / "run")
    ended = finish(1, "run", job, "--out", folder.root)
    assert "make room" in error_line(ended)
    planned = "the disk is too small: the run needs" in error_line(ended)
    assert ended.returncode == (2 if planned else 74)
    mount("size=64m")
    assert complete(folder, job).differences(whole[0]) == []


@pytest.mark.parametrize("files", [3, 6, 9, 14])
def test_a_file_system_with_too_few_files(job, whole, mount, files):
    folder = RunDir(mount(f"nr_inodes={files}") / "run")
    ended = finish(1, "run", job, "--out", folder.root)
    assert STRERROR["ENOSPC"] in error_line(ended)
    assert ended.returncode == 74
    mount("nr_inodes=1000")
    assert complete(folder, job).differences(whole[0]) == []


def test_a_file_system_that_becomes_read_only(job, whole, mount):
    folder = killed(mount("size=64m") / "run", 7, "run", job)
    mount("ro")
    ended = finish(1, "resume", folder.root)
    assert STRERROR["EROFS"] in error_line(ended)
    assert ended.returncode == 74
    mount("rw")
    assert complete(folder, job).differences(whole[0]) == []
