"""Rows and bytes on the disk, foretold: by hand, and against stores that are written."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from hpcfl.store.disk_usage import SEGMENT_HEADER, DiskUsage
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.schema import Field, StateSchema

CLIENTS = 90


class State(NamedTuple):
    """One vector."""

    z: torch.Tensor


SCHEMA = StateSchema(State, (Field("z", (100,), torch.float32),))


def last(*rounds):
    return np.array(rounds)


def test_rows_by_hand():
    """Clients 0, 1 of rank 0 and 2 of rank 1; rows of 1 GiB, of which a segment holds 16.

    At the third checkpoint the first is kept too: it names one state of rank 0 that the second
    does not; the newest names two more.  Two rounds may go on, with a client each of rank 0, seven
    each of rank 1.
    """
    found = DiskUsage(np.array([0, 0, 1]), 2, 1 << 30, keep=2, shared=False)
    found.commit(last(0, 0, 0))
    assert found.bytes.tolist() == [0, 0]
    found.commit(last(1, 0, 0))
    assert found.rows.tolist() == [1, 0]
    found.commit(last(2, 2, 2))
    assert found.rows.tolist() == [3, 1]
    assert found.states.tolist() == [2, 1]
    found.commit(last(3, 3, 2))
    assert found.rows.tolist() == [5, 1]
    found.add_spare_rows(last(1, 8))
    assert found.rows.tolist() == [7, 17]
    assert found.bytes.tolist() == [(7 << 30) + SEGMENT_HEADER, (17 << 30) + 2 * SEGMENT_HEADER]


def test_a_rank_that_sees_no_client_needs_nothing():
    found = DiskUsage(np.array([0, 1]), 2, 8, keep=2, shared=False)
    found.commit(last(1, 0))
    found.add_spare_rows(last(1, 0))
    assert found.bytes.tolist() == [3 * 8 + SEGMENT_HEADER, 0]


def test_a_shared_row_stands_for_a_round():
    """Rank 0's clients were last seen in the rounds 3, 3, 5; rank 1's in 3 and never."""
    owner = np.array([0, 0, 0, 1, 1])
    found = DiskUsage(owner, 2, 8, keep=2, shared=True)
    found.commit(last(3, 3, 5, 3, 0))
    assert found.states.tolist() == [2, 1]
    alone = DiskUsage(owner, 2, 8, keep=2, shared=False)
    alone.commit(last(3, 3, 5, 3, 0))
    assert alone.states.tolist() == [3, 1]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_store_takes_as_much(tmp_path, monkeypatch, keep):
    """Random visits, two rounds of which go on during every commit; the bytes of the files."""
    monkeypatch.setattr("hpcfl.store.row_allocator.FILE_BYTES", 32 * 400)
    random = np.random.default_rng(keep)
    visits = {t: random.choice(CLIENTS, 5, replace=False).tolist() for t in range(1, 41)}
    found = DiskUsage(np.zeros(CLIENTS, np.int64), 1, SCHEMA.bytes, keep, shared=False)
    root = tmp_path / "stores"
    root.mkdir()
    seen = np.zeros(CLIENTS, np.int64)
    for t, clients in visits.items():
        seen[clients] = t
        if t % 4 == 0:
            found.commit(seen.copy())
    found.add_spare_rows(np.array([5]))
    store = Hdf5Store(root, 0, "a", list(range(CLIENTS)), SCHEMA, 0)
    store.ensure_rows(found.rows.tolist())
    folders, pending = [], None
    for t, clients in visits.items():
        store.prefetch(clients)
        for client in clients:
            store.save(client, State(torch.full((100,), float(t))))
        if t % 4 == 2 and pending:  # the commit of two rounds ago
            for written in pending:
                written.result()
            folders.append(tmp_path / f"{t - 2}")
            store.retain(folders[-keep:])
        if t % 4 == 0:
            (tmp_path / f"{t}").mkdir()
            pending = store.snapshot(tmp_path / f"{t}")
    assert [size(root)] == found.bytes.tolist()
    store.close()


def size(root):
    return sum(file.stat().st_size for file in root.iterdir())
