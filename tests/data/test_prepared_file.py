"""A prepared file gets its name when its contents are on the disk."""

import os

import pytest

from hpcfl.data import prepared_file
from hpcfl.data.prepared_file import commit, new_prepared_file


@pytest.fixture
def events(tmp_path, monkeypatch):
    """What reaches the disk, and whether the file had its name by then."""
    found, fsync = [], os.fsync
    path = tmp_path / "file.h5"

    def synced(fd):
        fsync(fd)
        found.append(("file", path.exists()))

    monkeypatch.setattr(prepared_file.os, "fsync", synced)
    monkeypatch.setattr(
        prepared_file, "sync_folder", lambda folder: found.append((folder.name, path.exists()))
    )
    return found


def test_contents_reach_the_disk_before_the_name(tmp_path, events):
    (tmp_path / "file.part").write_bytes(b"x")
    commit(tmp_path / "file.part", tmp_path / "file.h5")
    assert events == [("file", False), (tmp_path.name, True)]


def test_so_does_a_new_file(tmp_path, events):
    with new_prepared_file(tmp_path / "file.h5", 1 << 10, format=1) as file:
        file["labels"] = [1, 2]
    assert events[-2:] == [("file", False), (tmp_path.name, True)]
