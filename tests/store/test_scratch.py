"""States on the node's disk: what a commit copies, and what the end removes."""

from typing import NamedTuple

import pytest
import torch

from hpcfl.errors import StoreError
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from hpcfl.store.schema import Field, StateSchema
from hpcfl.store.scratch import ScratchStore, scratch_folder
from hpcfl.store.segment import Segment

CLIENTS = 12


@pytest.fixture
def near(tmp_path):
    return scratch_folder(tmp_path / "disk", tmp_path / "run", 0)


@pytest.fixture
def store(root, near, schema):
    stores = (Hdf5Store(path, 0, "a", range(CLIENTS), schema, 0) for path in (near, root))
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
    assert (writes.count(near), writes.count(root)) == (CLIENTS, CLIENTS)
    store.save(3, make(3, 1))
    store.save(3, make(3, 2))
    commit("b", store)
    settle(store)
    assert (writes.count(near), writes.count(root)) == (CLIENTS + 2, CLIENTS + 1)
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


def test_the_disk_is_left_as_it_was_found(store, near, make, tmp_path):
    """Its own files alone are removed: others may be of a run that is alive."""
    other = scratch_folder(tmp_path / "disk", tmp_path / "run", 0)
    store.save(1, make(1, 0))
    store.close()
    assert list((tmp_path / "disk").iterdir()) == [other]


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"^store.dir: no folder .*file: File exists; choose"):
        scratch_folder(tmp_path / "file", tmp_path / "run", 0)


class Anchor(NamedTuple):
    x: torch.Tensor


def test_clients_that_share_a_state_share_a_row_in_the_run_directory(root, near, commit):
    """Whatever of it the scratch cache holds, and whichever clients were saved in between."""
    schema = StateSchema(Anchor, (Field("x", (4,), torch.float32, shared=True),))
    stores = (
        Hdf5Store(folder, 0, "a", range(CLIENTS), schema, 0, row_per_round=True)
        for folder in (near, root)
    )
    store = ScratchStore(*stores, near)
    for t, clients in enumerate(([0, 4, 8], [1, 2, 5], [3, 6])):
        x = torch.full((4,), float(t))
        for client in clients:
            store.save(client, Anchor(x))
    _, table = commit("a", store)
    assert len(set(zip(table.segments, table.rows, strict=True))) == 3
    store.close()
