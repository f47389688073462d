"""What all stores promise: states survive commits, kept checkpoints, resumes and other ranks."""

from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hpcfl.errors import StoreError
from hpcfl.store import row_table
from hpcfl.store.device import ALIGNMENT, DeviceStore
from hpcfl.store.footprint import footprint
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.null import NullStore
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import SHARED, Table
from hpcfl.store.schema import Field, StateSchema
from hpcfl.store.scratch import ScratchStore, scratch_folder
from hpcfl.store.shared import SharedStore
from tests.gpu.fake_cuda import fake_cuda
from tests.long_form import LONG
from tests.rundirs import row_tables, sessions

CLIENTS = 30


class One(NamedTuple):
    x: torch.Tensor


KINDS = {"hdf5": 1000, "hdf5 without cache": 0, "hdf5 with a cache of 3": 3, "scratch": 2}


@pytest.fixture(params=[*KINDS])
def one_part(request, tmp_path):
    def store(root, rank: int, session_id: str, clients, schema):
        room = KINDS[request.param] * footprint(schema)
        if request.param != "scratch":
            return Hdf5Store(root, rank, session_id, clients, schema, room)
        folder = scratch_folder(tmp_path / "disk", tmp_path, rank)
        near = Hdf5Store(folder, rank, session_id, clients, schema, room)
        return ScratchStore(near, Hdf5Store(root, rank, session_id, clients, schema, 0), folder)

    return store


@pytest.fixture(params=["whole", "in two parts", "behind a device"])
def build(request, root, schema, one_part):
    def store(rank: int, session_id: str, clients):
        if request.param == "whole":
            return one_part(root, rank, session_id, clients, schema)
        (root / SHARED).mkdir(exist_ok=True)
        own = one_part(root, rank, session_id, clients, schema.own)
        shared = one_part(root / SHARED, rank, session_id, clients, schema.shared)
        both = SharedStore(schema, own, shared)
        room = 3 * ALIGNMENT * len(schema.fields)  # of three states
        return both if request.param == "in two parts" else DeviceStore(both, schema, room)

    with fake_cuda() if request.param == "behind a device" else nullcontext():
        yield store


def test_the_latest_saved_state_is_loaded(build, make, bits):
    store = build(0, "a", range(CLIENTS))
    for version in range(3):
        for client in range(0, CLIENTS, 2):
            store.save(client, make(client, version))
    for client in range(0, CLIENTS, 2):
        assert bits(store.load(client)) == bits(make(client, 2))
    assert all(store.load(client) is None for client in range(1, CLIENTS, 2))
    store.close()


def test_what_a_store_keeps_is_a_copy(one_part, root, make, bits, schema):
    """Not of what it only hands on to the disk."""
    store = one_part(root, 0, "a", range(CLIENTS), schema)
    given = make(1, 0)
    store.save(1, given)
    if getattr(store, "_capacity", 1):
        for tensor in given:
            tensor.zero_()
    assert bits(store.load(1)) == bits(make(1, 0))
    store.close()


def test_a_state_of_another_shape_changes_nothing(build, make, bits, commit, schema):
    store = build(0, "a", range(CLIENTS))
    store.save(1, make(1, 0))
    for client in (1, 2):
        with pytest.raises(ValueError, match=r"'drift': got torch\.float32 \(3,\)"):
            store.save(client, make(client, 1)._replace(drift=torch.zeros(3)))
    assert bits(store.load(1)) == bits(make(1, 0))
    assert store.load(2) is None
    _, table = commit("a", store)
    with Reader(table, schema) as reader:
        assert bits(reader.read(1)) == bits(make(1, 0))
        assert reader.read(2) is None
    store.close()


def test_places_in_memory_are_as_many_as_states(one_part, root, make, schema, monkeypatch):
    """Loaded, evicted and saved, round after round, no state has two copies."""
    monkeypatch.setattr("hpcfl.store.footprint.BLOCK_BYTES", 1)  # a block a state
    store = one_part(root, 0, "a", range(CLIENTS), schema)
    arena = getattr(store, "_scratch", store)._arena
    for version in range(5):
        store.prefetch(range(CLIENTS))
        states = [store.load(client) for client in range(CLIENTS)]
        assert (states[0] is None) == (version == 0)
        del states
        for client in range(CLIENTS):
            store.save(client, make(client, version))
    # All of them and one that is taken while the old one is there; on their way from and to a disk
    # three cohorts more.
    assert len(arena._blocks) <= CLIENTS * 4 + 1
    store.close()


def test_a_client_of_another_rank_is_refused(build, make, tmp_path):
    store = build(1, "a", [5, 3])
    with pytest.raises(ValueError, match="client 4 is not one of rank 1's"):
        store.load(4)
    with pytest.raises(ValueError, match="client 4 is not one of rank 1's"):
        store.save(4, make(4, 0))
        store.snapshot(tmp_path)  # the latest moment
    store.close()


def test_a_kept_checkpoint_never_changes(build, make, bits, commit, schema):
    store = build(0, "a", range(CLIENTS))
    for client in range(20):
        store.save(client, make(client, 0))
    a, table_a = commit("a", store)
    store.retain([a])
    for version in range(1, 6):
        for client in range(CLIENTS):
            store.save(client, make(client, version))
    b, table_b = commit("b", store)
    store.retain([a, b])
    for client in range(CLIENTS):  # saved after b, never in a snapshot
        store.save(client, make(client, 9))
    with Reader(table_a, schema) as reader:
        assert all(bits(reader.read(client)) == bits(make(client, 0)) for client in range(20))
        assert all(reader.read(client) is None for client in range(20, CLIENTS))
    with Reader(table_b, schema) as reader:
        assert all(bits(reader.read(client)) == bits(make(client, 5)) for client in range(CLIENTS))
    store.close()


@pytest.mark.slow
def test_disk_stays_bounded_over_many_commits(build, make, bits, commit, schema, root):
    """At most what four commits take."""
    commits = 50 if LONG else 16
    store = build(0, "a", range(CLIENTS))
    folders = []
    for version in range(commits):
        for client in range(CLIENTS):
            store.save(client, make(client, version))
        folder, table = commit(f"c{version}", store)
        folders.append(folder)
        store.retain(folders[-2:])
        with Reader(Table.load(folders[-min(2, len(folders))], root), schema) as reader:
            assert bits(reader.read(7)) == bits(make(7, max(0, version - 1)))
    files = list(root.rglob("*.h5"))
    assert len(list(root.glob("*.h5"))) <= 3
    assert (
        sum(file.stat().st_size for file in files)
        < (4 * schema.bytes * CLIENTS) + len(files) * 8192
    )
    with Reader(table, schema) as reader:
        last = commits - 1
        assert all(bits(reader.read(i)) == bits(make(i, last)) for i in range(CLIENTS))
    store.close()


def test_restore_continues_from_the_snapshot(build, make, bits, commit, schema):
    first = [build(rank, "a", range(rank, CLIENTS, 2)) for rank in range(2)]
    for client in range(20):
        first[client % 2].save(client, make(client, 0))
    a, table = commit("a", *first)
    for client in range(CLIENTS):  # lost
        first[client % 2].save(client, make(client, 1))
    for store in first:
        store.close()

    second = [build(rank, "b", range(rank, CLIENTS, 2)) for rank in range(2)]
    for store in second:
        store.restore(table, 2)
    for client in range(CLIENTS):
        found = second[client % 2].load(client)
        assert found is None if client >= 20 else bits(found) == bits(make(client, 0))
    for client in range(10, CLIENTS):  # before retain: no old row may be overwritten
        second[client % 2].save(client, make(client, 2))
    for store in second:
        store.retain([a])
    for client in range(10):
        second[client % 2].save(client, make(client, 2))
    with Reader(table, schema) as reader:
        assert all(bits(reader.read(client)) == bits(make(client, 0)) for client in range(20))
    _, table = commit("b", *second)
    with Reader(table, schema) as reader:
        assert all(bits(reader.read(client)) == bits(make(client, 2)) for client in range(CLIENTS))
    for store in second:
        store.close()


def test_restore_from_2_ranks_to_3_to_1(build, make, bits, commit, root):
    ids = np.random.default_rng(0).choice(10**6, CLIENTS, replace=False).tolist()
    table = None
    for session_id, ranks in (("a", 2), ("b", 3), ("c", 1)):
        stores = [build(rank, session_id, ids[rank::ranks]) for rank in range(ranks)]
        if table is None:
            for at, client in enumerate(ids[:25]):
                stores[at % ranks].save(client, make(at, 0))
        else:
            for store in stores:
                store.restore(table, ranks)
        folder, table = commit(session_id, *stores)
        assert table.ranks == ranks
        for store in stores:
            store.retain([folder])
        for at, client in enumerate(ids):
            found = stores[at % ranks].load(client)
            assert found is None if at >= 25 else bits(found) == bits(make(at, 0))
        for store in stores:
            store.close()
        # The earlier sessions are no longer needed.
        row_table.prune(
            root, row_table.segments_in(folder, row_tables(folder)), sessions(root) - {session_id}
        )


def test_more_ranks_than_the_kept_checkpoint_had(build, make, bits, commit, schema):
    one = build(0, "a", range(CLIENTS))
    one.save(7, make(7, 0))
    a, table = commit("a", one)
    one.close()
    two = [build(rank, "b", range(rank, CLIENTS, 2)) for rank in range(2)]
    for store in two:
        store.restore(table, 2)
    b, table = commit("b", *two)
    for store in two:
        store.retain([a, b])
    two[1].save(7, make(7, 1))
    with Reader(table, schema) as reader:
        assert bits(reader.read(7)) == bits(make(7, 0))
    for store in two:
        store.close()


def flip(path, needle: bytes):
    content = path.read_bytes()
    at = content.index(needle)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def test_a_flipped_byte_is_found_and_named(build, make, commit, schema):
    store = build(0, "a", range(CLIENTS))
    for client in range(CLIENTS):
        store.save(client, make(client, 0))
    _, table = commit("a", store)
    store.close()
    place = table.find(12)
    flip(place.path, make(12, 0).drift.numpy().tobytes())
    match = rf"{place.path}: row {place.row} \(client 12\): found checksum"
    with Reader(table, schema) as reader, pytest.raises(StoreError, match=match):
        reader.read(12)
    store = build(0, "b", range(CLIENTS))
    with pytest.raises(StoreError, match=match):
        store.restore(table, 2)  # another number of ranks: copies
    store.close()


def test_a_lost_segment_is_named(build, make, commit):
    store = build(0, "a", range(CLIENTS))
    store.save(3, make(3, 0))
    _, table = commit("a", store)
    store.close()
    table.find(3).path.unlink()
    store = build(0, "b", range(CLIENTS))
    with pytest.raises(StoreError, match=r"a-r0000-s0000\.h5: the file is missing"):
        store.restore(table, 1)
    store.close()


def test_no_states_at_all(build, commit):
    store = build(0, "a", range(CLIENTS))
    _, table = commit("a", store)
    assert table.clients.size == 0
    store.close()
    store = build(0, "b", range(CLIENTS))
    store.restore(table, 1)
    assert store.load(0) is None
    store.close()


def test_sweep_deletes_what_nobody_names(build, make, commit, root):
    store = build(0, "old", range(CLIENTS))
    store.save(0, make(0, 0))
    a, _ = commit("a", store)
    store.close()
    lost = build(0, "lost", range(CLIENTS))
    lost.save(0, make(0, 1))
    commit("never-kept", lost)
    lost.close()
    open_store = build(0, "now", range(CLIENTS))
    open_store.save(0, make(0, 2))
    commit("b", open_store)
    (root / "lost-r0001-s0000.h5.part").touch()
    (root / "now-r0001-s0000.h5.part").touch()
    (root / "notes.h5").touch()
    (root / "foreign-r0000-s0000.h5").touch()
    before = set(root.rglob("*"))
    row_table.prune(root, row_table.segments_in(a, row_tables(a)), {"old", "lost"})
    deleted = before - set(root.rglob("*"))
    assert {p.name for p in deleted} == {"lost-r0000-s0000.h5", "lost-r0001-s0000.h5.part"}
    assert {path.name for path in before - set(deleted) if path.is_file()} == {
        "old-r0000-s0000.h5",
        "now-r0000-s0000.h5",
        "now-r0001-s0000.h5.part",
        "foreign-r0000-s0000.h5",
        "notes.h5",
    }
    open_store.close()


def test_no_store_keeps_nothing(make, commit, build):
    store = NullStore(0)
    store.save(3, make(3, 0))
    assert store.load(3) is None
    folder, table = commit("a", store)
    store.retain([folder])
    store.restore(table, 1)
    other = build(0, "a", range(CLIENTS))
    other.save(0, make(0, 0))
    _, table = commit("b", other)
    other.close()
    with pytest.raises(StoreError, match="holds 1 client states, expected none"):
        store.restore(table, 1)
    store.close()


def test_ten_thousand_small_states_take_few_files(root, commit):
    schema = StateSchema(One, (Field("x", (8,), torch.float32),))
    store = Hdf5Store(root, 0, "a", range(10_000), schema, 0)
    for client in range(10_000):
        store.save(client, One(torch.full((8,), float(client))))
    _, table = commit("a", store)
    assert len(list(root.iterdir())) == 1
    assert table.find(9_999).row < 20_000
    assert table.find(10_000) is None
    store.close()
