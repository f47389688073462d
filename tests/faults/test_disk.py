"""A disk that is full, fails or is read-only: one clear line, then a resume with the same bits."""

import os
import subprocess
from functools import partial

import pytest
from deny import deny_from
from forked import go_on, killed, live, write

from hpcfl.bench.chaos.run_outcome import outcome
from hpcfl.run_dir.layout import RunDir

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
    assert live("run", job, "--out", root).code == 0
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
    said = live("run", job, "--out", folder.root, prepare=fault)
    assert said.code or kind not in NEEDED
    if said.code:
        assert said.code == 74, said
        assert STRERROR[error] in said.line
    assert go_on(folder, job).differences(whole[0]) == []


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
    said = live("run", job, "--out", folder.root)
    assert "make room" in said.line
    planned = "the disk is too small: the run needs" in said.line
    assert said.code == (2 if planned else 74)
    mount("size=64m")
    assert go_on(folder, job).differences(whole[0]) == []


@pytest.mark.parametrize("files", [3, 6, 9, 14])
def test_a_file_system_with_too_few_files(job, whole, mount, files):
    folder = RunDir(mount(f"nr_inodes={files}") / "run")
    said = live("run", job, "--out", folder.root)
    assert STRERROR["ENOSPC"] in said.line
    assert said.code == 74
    mount("nr_inodes=1000")
    assert go_on(folder, job).differences(whole[0]) == []


def test_a_file_system_that_becomes_read_only(job, whole, mount):
    folder = killed(mount("size=64m") / "run", job, 7)
    mount("ro")
    said = live("resume", folder.root)
    assert STRERROR["EROFS"] in said.line
    assert said.code == 74
    mount("rw")
    assert go_on(folder, job).differences(whole[0]) == []
