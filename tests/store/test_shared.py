"""The model that many clients received is kept once a rank, as long as one of them needs it."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfl.errors import StoreError
from hpcfl.store import row_allocator, row_table
from hpcfl.store.footprint import footprint
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import SHARED, Table
from hpcfl.store.schema import Field, StateSchema
from hpcfl.store.shared import SharedStore
from tests.long_form import LONG
from tests.rundirs import row_tables, sessions

CLIENTS = 100
COHORT = 10
P = 500


class State(NamedTuple):
    anchor: Tensor
    last: Tensor


SCHEMA = StateSchema(
    State, (Field("anchor", (P,), torch.float32, shared=True), Field("last", (), torch.int64))
)


def model(round: int) -> Tensor:
    """What the clients of a round receive."""
    return torch.randn(P, generator=torch.Generator().manual_seed(round))


def cohort(round: int) -> list[int]:
    return np.random.default_rng(round).choice(CLIENTS, COHORT, replace=False).tolist()


def rounds_of(until: int) -> dict[int, int]:
    """Each client's last round before ``until``."""
    return {client: round for round in range(until) for client in cohort(round)}


def play(stores, round: int) -> None:
    x = model(round)
    for client in cohort(round):
        stores[client % len(stores)].save(client, State(x, torch.tensor(round)))


def holds(read, until: int) -> bool:
    """Whether ``read`` finds what the rounds before ``until`` left."""
    last = rounds_of(until)
    for client in range(CLIENTS):
        state = read(client)
        if client not in last:
            assert state is None
        else:
            assert isinstance(state, State)
            assert int(state.last) == last[client]
            assert torch.equal(state.anchor, model(last[client]))
    return True


@pytest.fixture(params=["hdf5", "hdf5 without cache", "hdf5 with a cache of 3"])
def build(request, root):
    (root / SHARED).mkdir()

    def part(folder, rank, session_id, clients, schema):
        states = {"hdf5": 1000, "hdf5 without cache": 0, "hdf5 with a cache of 3": 3}[request.param]
        return Hdf5Store(folder, rank, session_id, clients, schema, states * footprint(schema))

    def store(rank: int = 0, session_id: str = "a", ranks: int = 1):
        clients = range(rank, CLIENTS, ranks)
        own = part(root, rank, session_id, clients, SCHEMA.own)
        return SharedStore(
            SCHEMA, own, part(root / SHARED, rank, session_id, clients, SCHEMA.shared)
        )

    return store


def distinct(table: Table) -> int:
    """How many rows the shared parts take."""
    return len(set(zip(table.shared.segments.tolist(), table.shared.rows.tolist(), strict=True)))


def capacity(root) -> int:
    """How many shared rows the files have room for."""
    return sum(path.stat().st_size for path in (root / SHARED).iterdir()) // SCHEMA.shared.bytes


def test_the_clients_of_a_round_have_one_row(build, commit):
    store = build()
    for round in range(8):
        play([store], round)
    assert holds(store.load, 8)
    folder, table = commit("a", store)
    assert distinct(table) == len(set(rounds_of(8).values())) == 8
    assert len(set(zip(table.segments.tolist(), table.rows.tolist(), strict=True))) == len(
        rounds_of(8)
    )
    with Reader(table, SCHEMA) as reader:
        assert holds(reader.read, 8)
    assert row_table.files(folder, 1) == ["rows-0000.npz", "shared/rows-0000.npz"]
    store.close()


def test_clients_in_memory_have_one_copy(root, build):
    store = build()
    play([store], 0)
    cached = store._shared._capacity > 0
    if not cached:
        for writing in list(store._shared._writing.values()):
            writing.future.result()
    first, second = map(store.load, cohort(0)[:2])
    assert (first.anchor.data_ptr() == second.anchor.data_ptr()) == cached
    store.close()


@pytest.mark.slow
def test_files_stay_small_and_kept_checkpoints_whole_over_many_rounds(
    build, commit, root, monkeypatch
):
    """Some 30 models live at a time; two kept checkpoints pin as many each."""
    monkeypatch.setattr(row_allocator, "FIRST_ROWS", 8)
    monkeypatch.setattr(row_allocator, "FIRST_BYTES", 0)
    store = build()
    kept = []
    for round in range(300 if LONG else 100):
        play([store], round)
        if round % 20 == 19:
            folder, table = commit(f"{round}", store)
            kept = [*kept, (round + 1, folder)][-2:]
            store.retain([folder for _, folder in kept])
            assert distinct(table) == len(set(rounds_of(round + 1).values())) < 50
            for until, checkpoint in kept:
                with Reader(Table.load(checkpoint, root), SCHEMA) as reader:
                    assert holds(reader.read, until)
    assert capacity(root) < 140
    store.close()


def test_a_model_that_only_an_older_checkpoint_names_stays(build, commit, root):
    store = build()
    play([store], 0)
    a, table = commit("a", store)
    store.retain([a])
    for round in range(1, 40):  # every client of round 0 comes again
        for client in cohort(0):
            store.save(client, State(model(round), torch.tensor(round)))
        b, _ = commit(f"b{round}", store)
        store.retain([a, b])
    with Reader(table, SCHEMA) as reader:
        assert holds(reader.read, 1)
    store.close()


def test_rows_are_used_again_within_a_round_s_reach(root, monkeypatch):
    """Without any checkpoint: one client leaves its model's row to the next one's."""
    monkeypatch.setattr(row_allocator, "FIRST_ROWS", 4)
    monkeypatch.setattr(row_allocator, "FIRST_BYTES", 0)
    store = Hdf5Store(root, 0, "a", range(CLIENTS), SCHEMA.shared, 0)
    for round in range(50):
        x = model(round)
        for client in (1, 2, 3):
            store.save(client, (x,))
        assert all(torch.equal(store.load(client)[0], x) for client in (1, 2, 3))
    assert [part.rows for part in store._rows._segments] == [4]
    store.close()


def test_a_loaded_state_may_be_saved_again(build):
    """An algorithm may keep what it had: it is right, if not shared."""
    store = build()
    play([store], 0)
    play([store], 1)
    for client in cohort(0):
        before = store.load(client)
        store.save(client, State(before.anchor, before.last))
    assert holds(store.load, 2)
    store.close()


def test_a_client_s_change_is_not_its_fellows(build, commit):
    """Nor is a row overwritten in place that others have, or a tensor mistaken for another."""
    store = build()
    play([store], 0)
    one, *others = cohort(0)
    for version in range(5):
        store.save(one, State(torch.full((P,), float(version)), torch.tensor(0)))
        store.save(others[0], State(torch.full((P,), -1.0), torch.tensor(0)))
    assert (store.load(one).anchor == 4).all()
    assert (store.load(others[0]).anchor == -1).all()
    assert all(torch.equal(store.load(other).anchor, model(0)) for other in others[1:])
    _, table = commit("a", store)
    assert distinct(table) == 3
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", [(2, 3, 1), (3, 3, 2), (1, 3, 2)])
def test_a_rank_copies_each_model_once(build, commit, root, path):
    """Also where several ranks had kept it; then the same ranks or others go on."""
    until, table = 0, None
    for session_id, ranks in zip("abc", path, strict=True):
        stores = [build(rank, session_id, ranks) for rank in range(ranks)]
        if table is not None:
            for store in stores:
                store.restore(table, ranks)
        assert holds(lambda client: stores[client % ranks].load(client), until)  # noqa: B023
        for round in range(until, until + 15):
            play(stores, round)
        until += 15
        folder, table = commit(session_id, *stores)
        last = rounds_of(until)
        assert distinct(table) == sum(
            len({last[client] for client in last if client % ranks == rank})
            for rank in range(ranks)
        )
        for store in stores:
            store.retain([folder])
            store.close()
        row_table.prune(
            root, row_table.segments_in(folder, row_tables(folder)), sessions(root) - {session_id}
        )
        with Reader(table, SCHEMA) as reader:
            assert holds(reader.read, until)


def test_equal_checksums_are_not_yet_equal_states(root, commit, build, monkeypatch):
    """Where two models' checksums were the same, both would be copied."""
    monkeypatch.setattr("hpcfl.store.segment.zlib.crc32", lambda *_: 7)
    stores = [build(rank, "a", 2) for rank in range(2)]
    for round in range(15):
        play(stores, round)
    _, table = commit("a", *stores)
    assert set(table.shared.crcs.tolist()) == {7}
    store = build(0, "b", 1)
    store.restore(table, 1)
    assert holds(store.load, 15)
    for each in (*stores, store):
        each.close()


def test_parts_of_different_clients_are_refused(build, commit, root):
    store = build()
    play([store], 0)
    a, _ = commit("a", store)
    play([store], 1)
    b, _ = commit("b", store)
    (a / SHARED / "rows-0000.npz").write_bytes((b / SHARED / "rows-0000.npz").read_bytes())
    with pytest.raises(StoreError, match="a/shared: holds other clients than"):
        Table.load(a, root)
    store.close()


def test_states_without_a_shared_part_are_refused(build, commit, root):
    whole = Hdf5Store(root, 0, "a", range(CLIENTS), SCHEMA, 1 << 20)
    whole.save(3, State(model(0), torch.tensor(0)))
    _, table = commit("a", whole)
    store = build(0, "b")
    for ranks in (1, 2):
        with pytest.raises(StoreError, match="another algorithm made it"):
            store.restore(table, ranks)
    store.close()
