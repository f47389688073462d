"""What the store on disk promises beyond the others: its cache, its rows, its owners."""

import errno
from random import Random
from threading import Event, Timer, current_thread

import pytest
import torch

from hpcfl.errors import DiskError, StoreError
from hpcfl.store import background_io, row_allocator
from hpcfl.store.footprint import footprint
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from hpcfl.store.schema import Field, StateSchema
from hpcfl.store.segment import Segment

CLIENTS = 30


@pytest.fixture
def written(monkeypatch):
    """Counts the rows written to disk."""
    count = [0]
    write = Segment.write

    def counted(self, row, tensors):
        count[0] += 1
        write(self, row, tensors)

    monkeypatch.setattr(Segment, "write", counted)
    return count


@pytest.fixture
def gate(monkeypatch):
    """Rows are read and written only while it is set."""
    gate, read, write = Event(), Segment.fill, Segment.write
    gate.set()

    def waiting(call):
        def later(self, *args):
            assert gate.wait(60)
            return call(self, *args)

        return later

    monkeypatch.setattr(Segment, "fill", waiting(read))
    monkeypatch.setattr(Segment, "write", waiting(write))
    return gate


def settle(store):
    """Wait until all states are written."""
    for writing in list(store._writing.values()):
        writing.future.result()
    store._collect_writes()


def build(root, schema, states, clients=range(CLIENTS), session_id="a", rank=0):
    return Hdf5Store(root, rank, session_id, clients, schema, states * footprint(schema))


@pytest.fixture
def reads(monkeypatch):
    """Notes the rows read from disk."""
    rows = []
    monkeypatch.setattr(Segment, "fill", reader_that_notes(rows))
    return rows


def test_cached_states_stay_in_memory_and_wait_for_the_commit(
    root, schema, make, bits, commit, written, reads
):
    store = build(root, schema, 10)
    states = [make(client, 0) for client in range(10)]
    for client, state in enumerate(states):
        store.save(client, state)
    assert all(bits(store.load(client)) == bits(state) for client, state in enumerate(states))
    assert written == [0]
    commit("a", store)
    assert written == [10]
    assert all(bits(store.load(client)) == bits(state) for client, state in enumerate(states))
    commit("b", store)
    assert written == [10]  # nothing changed
    assert reads == []
    store.close()


def test_the_cache_keeps_its_limit_and_evicts_the_least_recently_used(
    root, schema, make, bits, written, reads
):
    store = build(root, schema, 3)
    states = [make(client, 0) for client in range(5)]
    for client in range(3):
        store.save(client, states[client])
    store.load(0)  # now 1 is the oldest
    store.save(3, states[3])
    settle(store)
    assert written == [1]
    assert bits(store.load(0)) == bits(states[0])
    assert reads == []
    assert bits(store.load(1)) == bits(states[1])  # evicts 2
    assert reads == [1]
    settle(store)
    assert written == [2]
    for client in range(4, CLIENTS):
        store.save(client, make(client, 0))
        assert len(store._cache) == 3
    for client in range(CLIENTS):  # clean states are dropped without a write
        store.load(client)
    settle(store)
    count = written[0]
    for client in range(CLIENTS):
        assert bits(store.load(client)) == bits(make(client, 0))
    assert written == [count]
    store.close()


def test_without_cache_every_state_is_written_at_once(root, schema, make, bits, written):
    store = build(root, schema, 0)
    state = make(1, 0)
    store.save(1, state)
    settle(store)
    assert written == [1]
    assert store.load(1) is not state
    assert bits(store.load(1)) == bits(state)
    store.close()


def test_a_row_written_since_the_commit_is_overwritten_in_place(root, schema, make, commit):
    store = build(root, schema, 0)
    for version in range(20):
        store.save(4, make(4, version))
    _, first = commit("a", store)
    for version in range(20):
        store.save(4, make(4, version))
    _, second = commit("b", store)
    assert [first.find(4).row, second.find(4).row] == [0, 1]
    store.close()


def test_a_damaged_row_is_found_when_the_store_reads_it(root, schema, make, commit):
    store = build(root, schema, 0)
    store.save(4, make(4, 0))
    _, table = commit("a", store)
    place = table.find(4)
    with place.path.open("r+b") as file:
        content = file.read()
        at = content.index(make(4, 0).drift.numpy().tobytes())
        file.seek(at)
        file.write(bytes([content[at] ^ 128]))
    with pytest.raises(StoreError, match=rf"{place.path}: row 0 \(client 4\): found checksum"):
        store.load(4)
    store.close()


def test_a_checkpoint_that_was_never_kept_frees_its_rows(root, schema, make, commit, bits):
    store = build(root, schema, 0)
    for client in range(CLIENTS):
        store.save(client, make(client, 0))
    kept, table = commit("kept", store)
    store.retain([kept])
    for version in range(1, 20):  # commits whose manifest never came
        for client in range(CLIENTS):
            store.save(client, make(client, version))
        commit(f"lost{version}", store)
        store.retain([kept])
    with Reader(table, schema) as reader:
        assert all(bits(reader.read(client)) == bits(make(client, 0)) for client in range(CLIENTS))
    assert sum(part.rows for part in store._rows._segments) <= 3 * CLIENTS
    store.close()


def test_growth_is_by_an_eighth_and_small_files_bound_it(
    root, schema, make, bits, commit, monkeypatch
):
    monkeypatch.setattr(row_allocator, "FIRST_ROWS", 4)
    monkeypatch.setattr(row_allocator, "FIRST_BYTES", 0)
    monkeypatch.setattr(row_allocator, "FILE_BYTES", 5 * schema.bytes)
    store = build(root, schema, 2)
    for client in range(CLIENTS):
        store.save(client, make(client, 0))
    a, table = commit("a", store)
    assert [part.rows for part in store._rows._segments] == 8 * [4]
    grown = [row_allocator.growth(have, 99, 0, schema.bytes) for have in (39, 40, 80)]
    assert grown == [4, 5, 5]
    with Reader(table, schema) as reader:
        assert all(bits(reader.read(client)) == bits(make(client, 0)) for client in range(CLIENTS))
    store.close()
    store = build(root, schema, 2, session_id="b")
    store.restore(table, 1)
    store.retain([a])
    assert all(bits(store.load(client)) == bits(make(client, 0)) for client in range(CLIENTS))
    store.save(0, make(0, 1))
    store.save(1, make(1, 1))
    _, table = commit("b", store)
    assert table.find(0).path.name == "a-r0000-s0007.h5"  # its free rows first
    store.close()


def test_no_more_than_two_rows_a_client_at_first(root, schema, make):
    store = build(root, schema, 0, clients=[7, 9])
    store.save(7, make(7, 0))
    assert [part.rows for part in store._rows._segments] == [4]
    store.close()


def test_restore_refuses_other_owners(root, schema, make, commit):
    stores = [build(root, schema, 0, range(rank, CLIENTS, 2), rank=rank) for rank in range(2)]
    for client in range(CLIENTS):
        stores[client % 2].save(client, make(client, 0))
    _, table = commit("a", *stores)
    for store in stores:
        store.close()
    for clients in (range(15), range(0, CLIENTS, 3), range(CLIENTS)):
        store = build(root, schema, 0, clients, session_id="b")
        with pytest.raises(StoreError, match=r"client \d+ changed its rank since the checkpoint"):
            store.restore(table, 2)
        store.close()


def test_two_runs_cannot_restore_the_same_segments(root, schema, make, commit):
    store = build(root, schema, 0)
    store.save(0, make(0, 0))
    _, table = commit("a", store)
    other = build(root, schema, 0, session_id="b")
    with pytest.raises(StoreError, match="another process has it open for writing"):
        other.restore(table, 1)
    other.close()
    store.close()


def test_a_full_disk_is_met_at_growth_and_the_checkpoint_stands(
    root, schema, make, bits, commit, monkeypatch
):
    store = build(root, schema, 0, clients=[0, 1])
    for client in range(2):
        store.save(client, make(client, 0))
    a, table = commit("a", store)
    for client in range(2):
        store.save(client, make(client, 1))
    b, _ = commit("b", store)
    store.retain([a, b])

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hpcfl.io.new_hdf5.os.posix_fallocate", full)
    with pytest.raises(DiskError, match=r"\(No space left on device\): needs .* free; make room"):
        store.save(0, make(0, 2))
    with Reader(table, schema) as reader:
        assert all(bits(reader.read(client)) == bits(make(client, 0)) for client in range(2))
    store.close()


def test_a_small_state_is_charged_for_its_objects():
    """A gibibyte holds no 50 million states of 20 bytes; as resident memory each takes 330."""
    one = StateSchema(tuple, (Field("x", (5,), torch.float32),))
    assert one.bytes == 20
    assert 350 <= footprint(one) <= 500
    three = StateSchema(tuple, tuple(Field(name, (5,), torch.float32) for name in "xyz"))
    assert footprint(three) == footprint(one) + 2 * 64


def test_expected_states_are_read_ahead(root, schema, make, bits, reads):
    store = build(root, schema, 0)
    for client in range(6):
        store.save(client, make(client, 0))
    settle(store)
    store.prefetch([1, 2, 29])
    store._begin_read(0, 0)()  # after those that were asked before
    assert reads == [1, 2, 0]
    assert [bits(store.load(client)) for client in (1, 2)] == [bits(make(c, 0)) for c in (1, 2)]
    assert store.load(29) is None
    assert reads == [1, 2, 0]
    store.close()


def reader_that_notes(rows):
    fill = Segment.fill

    def noted(self, row, tensors):
        rows.append(row)
        fill(self, row, tensors)

    return noted


def test_a_state_saved_after_its_prefetch_is_loaded(root, schema, make, bits, gate):
    """A client that takes part in two rounds running."""
    store = build(root, schema, 0)
    store.save(1, make(1, 0))
    settle(store)
    gate.clear()
    store.prefetch([1, 2])
    after, new = make(1, 1), make(2, 1)
    store.save(1, after)
    store.save(2, new)
    assert bits(store.load(1)) == bits(after)  # nobody waits for the disk
    assert bits(store.load(2)) == bits(new)
    gate.set()
    store.close()


def test_states_on_their_way_to_the_disk_are_two_cohorts_at_most(root, schema, make, gate):
    store = build(root, schema, 0)
    store.prefetch([0, 1, 2])
    gate.clear()
    for client in range(6):
        store.save(client, make(client, 0))
    assert len(store._evicted) == 6
    Timer(0.05, gate.set).start()
    store.save(6, make(6, 0))  # waits for the first
    assert len(store._evicted) <= 6
    settle(store)
    assert (len(store._evicted), store._writing) == (0, {})
    store.close()


def test_states_replaced_during_a_commit_are_two_cohorts_at_most(
    root, schema, make, gate, tmp_path
):
    store = build(root, schema, 10)
    store.prefetch([0, 1])
    for client in range(10):
        store.save(client, make(client, 0))
    gate.clear()
    (written,) = store.snapshot(tmp_path)
    for client in range(4):
        store.save(client, make(client, 1))
    assert len(store._evicted) == 4
    Timer(0.05, gate.set).start()
    store.save(4, make(4, 1))  # waits for the first
    assert len(store._evicted) <= 4
    written.result()
    store.close()


def test_reading_waits_for_no_write(root, schema, make, bits, monkeypatch, tmp_path):
    """Of a commit, of a state that is let go of."""
    store = build(root, schema, 1)
    store.prefetch(range(5))
    for client in range(3):
        store.save(client, make(client, 0))
    settle(store)
    held, write = Event(), Segment.write

    def wait(self, row, tensors):
        assert held.wait(60)
        write(self, row, tensors)

    monkeypatch.setattr(Segment, "write", wait)
    (written,) = store.snapshot(tmp_path)
    store.save(3, make(3, 0))
    store.save(4, make(4, 0))
    assert bits(store.load(0)) == bits(make(0, 0))
    assert not written.done()
    held.set()
    written.result()
    store.close()


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_snapshot_is_not_overwritten_by_an_older_write(
    root, schema, make, bits, monkeypatch, tmp_path, taken_over
):
    """The cache evicts a state, and its row gets a newer one before the disk has written it.

    Evicted states are written only once the snapshot has come to its flush, by when it has written
    what it may write without them.  The row's newer state is of the same client, or of another one.
    """
    flushing, flush, write = Event(), background_io._flush, Segment.write

    def slow(self, row, tensors):
        if current_thread().name.startswith("store-write"):
            assert flushing.wait(60)
        write(self, row, tensors)

    def told(*arguments):
        flushing.set()
        flush(*arguments)

    monkeypatch.setattr(Segment, "write", slow)
    monkeypatch.setattr(background_io, "_flush", told)
    store = build(root, schema, 1)
    store.prefetch(range(5))  # a cohort, of which two may wait for the disk
    expected = {client: make(client, 0) for client in (0, 1)}
    for client, state in expected.items():
        store.save(client, state)  # the second evicts the first
    if taken_over:  # client 0 shares the row of client 1 now, and client 2 gets its old one
        same = expected[0] = expected[1] = make(1, 1)
        store.save(1, same)
        store.save(0, same)
        free = len(store._rows._free)
        expected[2] = make(2, 1)
        store.save(2, expected[2])
        assert len(store._rows._free) == free - 1
    else:
        expected[0] = make(0, 1)
        store.save(0, expected[0])
    folder = tmp_path / "at"
    folder.mkdir()
    for future in store.snapshot(folder):
        future.result()
    with Reader(Table.load(folder, root), schema) as reader:
        for client, state in expected.items():
            assert bits(reader.read(client)) == bits(state), client
    store.close()


def test_states_saved_during_a_snapshot_are_not_part_of_it(
    root, schema, make, bits, gate, tmp_path
):
    store = build(root, schema, 10)
    store.prefetch(range(8))
    for client in range(8):
        store.save(client, make(client, 0))
    gate.clear()
    (tmp_path / "a").mkdir()
    (written,) = store.snapshot(tmp_path / "a")
    for client in range(8):
        store.save(client, make(client, 1))
    assert not written.done()
    gate.set()
    written.result()
    with Reader(Table.load(tmp_path / "a", root), schema) as reader:
        assert all(bits(reader.read(client)) == bits(make(client, 0)) for client in range(8))
    assert all(bits(store.load(client)) == bits(make(client, 1)) for client in range(8))
    store.close()


@pytest.mark.parametrize("error", [StoreError, MemoryError, ValueError])
@pytest.mark.parametrize("states", [0, 10])
def test_a_write_that_fails_behind_fails_the_commit(
    root, schema, make, gate, monkeypatch, tmp_path, error, states
):
    """Of a state that was let go of, and of one in the cache."""
    store = build(root, schema, states)
    store.save(1, make(1, 0))
    settle(store)

    def fail(self, row, tensors):
        assert gate.wait(60)
        raise error("the disk fails")

    monkeypatch.setattr(Segment, "write", fail)
    gate.clear()
    store.save(2, make(2, 0))
    gate.set()
    (written,) = store.snapshot(tmp_path)
    with pytest.raises(error, match="the disk fails"):
        written.result()
    assert not list(tmp_path.glob("rows-*.npz"))
    store.close()


@pytest.mark.parametrize("keep", [1, 3])
def test_the_disk_that_is_bounded_in_advance_is_enough(root, schema, make, commit, keep):
    """Random visits, and a checkpoint that is written while the next rounds go on."""
    store, random, every, size, kept = build(root, schema, 0), Random(keep), 3, 4, []
    for t in range(60):
        for client in random.sample(range(CLIENTS), size):
            store.save(client, make(client, t))
        if t % every == 0:
            kept = [*kept[-keep:], commit(f"{t}", store)[0]]
        if t % every == 2:
            store.retain(kept[-keep:])
    taken = sum(path.stat().st_size for path in root.iterdir())
    rows = CLIENTS + (keep + 1) * min(CLIENTS, every * size)
    assert taken <= row_allocator.most_bytes(rows, CLIENTS, schema.bytes)
    store.close()


def test_a_resume_keeps_the_rows_of_older_checkpoints(root, schema, make, bits, commit):
    """Without their files being read again."""
    store = build(root, schema, 0)
    for client in range(CLIENTS):
        store.save(client, make(client, 0))
    a, older = commit("a", store)
    for client in range(CLIENTS):
        store.save(client, make(client, 1))
    b, newest = commit("b", store)
    store.close()
    store = build(root, schema, 0, session_id="b")
    store.restore(newest, 1, [older])
    for folder in (a, b):
        (folder / "rows-0000.npz").unlink()
    store.retain([a, b])
    for client in range(CLIENTS):
        store.save(client, make(client, 2))
    commit("c", store)
    for version, table in enumerate((older, newest)):
        with Reader(table, schema) as reader:
            assert all(
                bits(reader.read(client)) == bits(make(client, version))
                for client in range(CLIENTS)
            )
    store.close()
