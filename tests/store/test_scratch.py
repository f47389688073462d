"""States on the node's disk: what a commit copies, and what is left behind."""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import NamedTuple

import pytest
import torch

from hpcfl.errors import StoreError
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from hpcfl.store.schema import Field, StateSchema
from hpcfl.store.scratch import ScratchFolder, ScratchStore
from hpcfl.store.segment import Segment

CLIENTS = 12


@pytest.fixture
def folder(tmp_path):
    """Make a folder on the node's disk."""

    def make(run, session_id, rank=0, name="own"):
        return ScratchFolder(tmp_path / "disk", tmp_path / run, rank, session_id, name)

    return make


@pytest.fixture
def near(folder):
    return folder("run", "a")


@pytest.fixture
def store(root, near, schema):
    stores = (Hdf5Store(path, 0, "a", range(CLIENTS), schema, 0) for path in (near.path, root))
    return ScratchStore(*stores, near)


def settle(store):
    """Wait until the scratch disk has all that is being written."""
    for writing in list(store._scratch._writing.values()):
        writing.future.result()


def test_a_commit_copies_what_changed(root, near, store, make, commit, monkeypatch):
    writes, write = [], Segment.write

    def noted(self, row, tensors):
        writes.append(self.path.parent)
        write(self, row, tensors)

    monkeypatch.setattr(Segment, "write", noted)
    for client in range(CLIENTS):
        store.save(client, make(client, 0))
    kept, _ = commit("a", store)
    settle(store)
    store.retain([kept])
    assert (writes.count(near.path), writes.count(root)) == (CLIENTS, CLIENTS)
    store.save(3, make(3, 1))
    store.save(3, make(3, 2))
    commit("b", store)
    settle(store)
    assert (writes.count(near.path), writes.count(root)) == (CLIENTS + 2, CLIENTS + 1)
    store.close()


def test_states_saved_during_a_copy_are_not_part_of_it(
    root, store, make, bits, schema, tmp_path, monkeypatch
):
    for client in range(CLIENTS):
        store.save(client, make(client, 0))
    (tmp_path / "a").mkdir()
    with store._permanent_lock:  # the copier waits
        (copied,) = store.snapshot(tmp_path / "a")
        for client in range(CLIENTS):
            store.save(client, make(client, 1))
        assert not copied.done()
    copied.result()
    with Reader(Table.load(tmp_path / "a", root), schema) as reader:
        assert all(bits(reader.read(i)) == bits(make(i, 0)) for i in range(CLIENTS))
    assert all(bits(store.load(i)) == bits(make(i, 1)) for i in range(CLIENTS))
    store.close()


def test_the_disk_is_left_as_it_was_found(store, folder, make, tmp_path):
    own = [folder("run", "a", rank) for rank in (1, 2)]
    store.save(1, make(1, 0))
    store.close()
    assert all(each.path.exists() for each in own)
    for each in own:
        each.close()
    assert list((tmp_path / "disk").iterdir()) == []


def kill(folder):
    """As the system releases the lock of a process that was killed."""
    (folder.path / "states.h5").touch()
    os.close(folder._fd)


def test_what_killed_sessions_left_is_removed(folder, tmp_path):
    """Of any run; those that are alive, also if they have no states yet, and others' files stay."""
    states = tmp_path / "disk/hpcfl-mine-20261125/a/0000/own"
    states.mkdir(parents=True)
    alive = [folder("other", "alive", rank, "shared") for rank in (0, 1)]
    dead = [folder("third", "dead"), folder("fourth", "dead", 1), folder("run", "dead")]
    half = folder("other", "alive", 2)
    for each in (*dead, half):
        kill(each)
    own = folder("run", "new")
    for each in (*alive, own):
        assert each.path.exists()
    for each in (*dead, half):
        assert not each.path.exists()
    assert half.path.parents[1].exists()
    assert not dead[0].path.parents[2].exists()  # the run's
    assert states.exists()


def test_a_rank_waits_until_another_has_removed_them(folder, monkeypatch):
    """Else the disk would still be full when it makes its files."""
    dead, own, asked, remove, flock = folder("other", "dead"), [], [], shutil.rmtree, fcntl.flock
    kill(dead)
    other, first = Thread(target=lambda: own.append(folder("run", "a", 1))), Event()

    def told(fd, kind):
        if current_thread() is other:
            asked.append(kind)
            first.set()
        flock(fd, kind)

    def slowly(path, **options):
        if path == dead.path:
            other.start()
            assert first.wait(60)
            assert asked == [fcntl.LOCK_EX]  # it waits, as this thread holds the lock
        remove(path, **options)

    monkeypatch.setattr("fcntl.flock", told)
    monkeypatch.setattr("shutil.rmtree", slowly)
    folder("run", "a")
    other.join(60)
    assert not other.is_alive()
    assert not dead.path.exists()
    assert own[0].path.exists()


def test_a_full_disk_is_cleared(folder, monkeypatch):
    """Though it has no room for one more file."""
    dead, make = folder("other", "dead"), os.open
    kill(dead)

    def full(path, flags, *arguments, **options):
        if flags & os.O_CREAT and dead.path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(path, flags, *arguments, **options)

    monkeypatch.setattr("os.open", full)
    assert folder("run", "a").path.exists()


def test_what_other_hosts_left_stays(folder, monkeypatch):
    """Their locks may not be seen here."""
    monkeypatch.setattr("socket.gethostname", lambda: "node2")
    there = folder("other", "alive")
    kill(there)
    monkeypatch.setattr("socket.gethostname", lambda: "node1")
    folder("run", "a")
    assert there.path.exists()


def test_a_session_of_another_container_is_left_alone_while_it_is_alive(folder, monkeypatch):
    """Its run directory has the same path there."""
    monkeypatch.setattr("socket.gethostname", lambda: "container2")
    there = folder("run", "a")
    monkeypatch.setattr("socket.gethostname", lambda: "container1")
    folder("run", "b").close()
    assert there.path.exists()
    kill(there)
    folder("run", "c")
    assert not there.path.exists()


def test_nothing_is_removed_where_there_are_no_locks(folder, no_locks):
    """Neither sessions that could not lock their folders, nor those that could."""
    no_locks(False)
    before = folder("other", "before")
    kill(before)
    no_locks(True)
    with pytest.warns(UserWarning, match="no locks on this file system"):
        during = folder("third", "during")
    assert before.path.exists()
    alone = folder("fourth", "alone")
    alone.close()
    assert not alone.path.parents[2].exists()  # the run's
    no_locks(False)
    folder("run", "a")
    assert during.path.exists()
    assert not before.path.exists()


def test_a_folder_is_locked_before_others_see_it(folder, monkeypatch):
    """Another start finds its lock file a moment before it is locked, and removes that."""
    flock, found = fcntl.flock, []

    def look_first(fd, kind):
        path = Path(f"/proc/self/fd/{fd}").resolve()
        if kind == fcntl.LOCK_EX and path.name.startswith("own.") and not found:
            found.append(path)
            folder("other", "b", name="shared").close()
            assert not path.exists()
        flock(fd, kind)

    monkeypatch.setattr("fcntl.flock", look_first)
    own = folder("run", "a")
    assert found
    folder("other", "c")
    assert own.path.exists()
    kill(own)
    folder("other", "d")
    assert not own.path.exists()


def test_a_folder_is_made_though_others_remove_what_is_empty(folder, monkeypatch):
    make, removed = os.open, []

    def late(path, *arguments, **options):
        if Path(path).name.startswith("own.") and not removed:
            Path(path).parent.rmdir()
            removed.append(path)
        return make(path, *arguments, **options)

    monkeypatch.setattr("os.open", late)
    assert folder("run", "a").path.exists()
    assert removed


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.*: cannot be written: Not a directory"):
        ScratchFolder(tmp_path / "file", tmp_path / "run", 0, "a", "own")


class Anchor(NamedTuple):
    x: torch.Tensor


def test_clients_that_share_a_state_share_a_row_in_the_run_directory(root, near, commit):
    """Whatever of it the scratch cache holds, and whichever clients were saved in between."""
    schema = StateSchema(Anchor, (Field("x", (4,), torch.float32, shared=True),))
    stores = (
        Hdf5Store(folder, 0, "a", range(CLIENTS), schema, 0, row_per_round=True)
        for folder in (near.path, root)
    )
    store = ScratchStore(*stores, near)
    for t, clients in enumerate(([0, 4, 8], [1, 2, 5], [3, 6])):
        x = torch.full((4,), float(t))
        for client in clients:
            store.save(client, Anchor(x))
    _, table = commit("a", store)
    assert len(set(zip(table.segments, table.rows, strict=True))) == 3
    store.close()
