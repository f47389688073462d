"""A file is complete and on the disk, or not there at all."""

import errno
import os

import pytest

from hpcfl.errors import DiskError, StoreError
from hpcfl.io.atomic import STANDS, write_file


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a"
    for content in (b"old", b"newer"):
        write_file(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch, fails):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a"
    write_file(path, b"old")
    monkeypatch.setattr(*(os, "fsync") if fails == "fsync" else (type(path), "replace"), fail)
    with pytest.raises(DiskError) as caught:
        write_file(path, b"newer", advice="pray")
    assert str(caught.value) == f"{path}: cannot write 5 bytes: No space left on device; pray"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_no_checkpoint_is_spoken_of_unless_the_caller_does(tmp_path):
    for advice in ({}, {"advice": STANDS}):
        with pytest.raises(StoreError) as caught:
            write_file(tmp_path / "absent" / "a", b"x", **advice)
        assert ("the last checkpoint" in str(caught.value)) == bool(advice)
