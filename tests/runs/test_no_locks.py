"""A run directory on a file system without locks, as Lustre is often mounted; and who may lock."""

import os
import stat

import pytest

from hpcfl.errors import JobError
from hpcfl.io import heartbeat
from hpcfl.io.heartbeat import Heartbeats, RankProgress
from hpcfl.runs.layout import RunDir


@pytest.fixture
def folder(tmp_path, monkeypatch, no_locks):
    """A directory whose run has written a heartbeat."""
    monkeypatch.setattr(heartbeat, "WATCHED_S", 0.2)
    (tmp_path / "lock").touch()
    return RunDir(tmp_path)


@pytest.fixture
def files(folder):
    files = Heartbeats(folder.ranks, "0123abcd", 0)
    files.begin()
    files.open(RankProgress())
    return files


def test_a_run_whose_heartbeats_are_rewritten_is_alive(folder, files, monkeypatch):
    monkeypatch.setattr(heartbeat, "WATCHED_S", 600.0)  # it ends with the first heartbeat
    monkeypatch.setattr(heartbeat.time, "sleep", lambda _: files.beat(RankProgress(3)))
    assert folder.is_locked()
    with pytest.raises(JobError, match="a run is alive in this directory"):
        folder.lock()


def test_a_session_that_begins_meanwhile_is_alive(folder, files, monkeypatch):
    """It removes the heartbeats of the session before."""
    monkeypatch.setattr(heartbeat, "WATCHED_S", 600.0)

    def begin(_):
        new = Heartbeats(folder.ranks, "89abcdef", 0)
        new.begin()
        new.open(RankProgress())

    monkeypatch.setattr(heartbeat.time, "sleep", begin)
    assert folder.is_locked()


def test_a_run_whose_heartbeats_stay_as_they_are_has_ended(folder, files):
    assert not folder.is_locked()
    with folder, pytest.warns(UserWarning, match="no locks on this file system"):
        folder.lock()
    with folder:  # which is said once in a process
        folder.lock()


def test_without_heartbeats_nobody_waits(folder, monkeypatch):
    monkeypatch.setattr(heartbeat.time, "sleep", lambda _: pytest.fail("waits for nothing"))
    assert not folder.is_locked()


def test_a_colleague_of_the_group_may_lock_it_too(tmp_path):
    before = os.umask(0o002)
    try:
        with RunDir(tmp_path) as folder:
            folder.lock()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o664
