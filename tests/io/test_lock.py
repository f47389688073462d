"""Locks on what is being made: held, waited for, left by a kill, and where there can be none."""

import errno
import threading

import pytest

from hpcfl.errors import DataError
from hpcfl.io.lock import locked, preparing
from tests.data.test_prepare import write_concrete


def test_one_at_a_time(tmp_path):
    root = tmp_path / "root"
    with preparing(root, "leaf"):
        with (
            pytest.raises(DataError, match=f"^{root}: another prepare of leaf is at work there"),
            preparing(root, "leaf"),
        ):
            pass
        with preparing(root, "emnist"), preparing(tmp_path / "other", "leaf"):
            pass
    with preparing(root, "leaf"):
        pass
    assert not root.exists()


def test_the_second_waits_and_takes_its_turn(tmp_path, waiting):
    """On a file of its own, because the first removes the one it waited at."""
    told = []

    def second():
        with locked(tmp_path / "file"):
            told.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "file"):
        thread.start()
        waiting.wait()
        told.append("first")
    thread.join()
    assert told == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_no_lock(tmp_path):
    (tmp_path / ".leaf.lock").touch()
    with preparing(tmp_path, "leaf"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_where_nobody_may_write(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("hpcfl.io.lock.os.open", refuse)
    with preparing(tmp_path, "leaf"):
        pass


def test_a_file_system_without_locks(tmp_path, no_locks):
    with (
        pytest.warns(UserWarning, match="no locks on this file system"),
        preparing(tmp_path, "leaf"),
    ):
        pass
    with preparing(tmp_path, "leaf"):  # which is said once in a process
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file(tmp_path, refused):
    (tmp_path / "file").touch()
    said = refused("data", "prepare", "concrete", "--root", tmp_path / "file")
    assert said.startswith(f"DataError: {tmp_path}/file/.concrete.lock: cannot be made: ")


def test_the_command_refuses_a_second_prepare(tmp_path, hpcfl, refused, monkeypatch):
    write_concrete(tmp_path, monkeypatch)
    command = ("data", "prepare", "concrete", "--root", tmp_path)
    with preparing(tmp_path, "concrete"):
        said = refused(*command)
    assert said == (
        f"DataError: {tmp_path}: another prepare of concrete is at work there; wait for it or "
        "stop it"
    )
    assert hpcfl(*command).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["Concrete_Data.csv"]


def test_data_without_a_root_makes_no_folder(tmp_path, refused):
    assert "needs no preparation" in refused("data", "prepare", "digits", "--root", tmp_path / "no")
    assert list(tmp_path.iterdir()) == []
