"""Rows and bytes on the disk, foretold: by hand, and against stores that are written."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from hpcfl.store.base import Field, StateSchema
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.memory import MemoryStore
from hpcfl.store.size import HEADER, Occupancy

CLIENTS = 90


class State(NamedTuple):
    """One vector."""

    z: torch.Tensor


SCHEMA = StateSchema(State, (Field("z", (100,), torch.float32),))


def last(*rounds):
    return np.array(rounds)


def test_rows_by_hand():
    """Clients 0, 1 of rank 0 and 2 of rank 1; large rows, so a segment has 64 or all it may.

    Rank 0 may have 2 x 2 rows at first, rank 1 two.  Two kept checkpoints name three states of
    rank 0, and two are new: the fifth row wants a second segment, of 2 x 2 + 3 - 4 rows.
    """
    found = Occupancy(np.array([0, 0, 1]), 2, 1 << 20, keep=2, shared=False, memory=False)
    found.commit(last(0, 0, 0))
    assert found.bytes.tolist() == [0, 0]
    found.commit(last(1, 0, 0))
    assert found.rows.tolist() == [4, 0]
    found.commit(last(2, 2, 1))
    assert found.rows.tolist() == [4, 2]
    assert found.states.tolist() == [2, 1]
    found.commit(last(3, 3, 1))
    assert found.rows.tolist() == [7, 2]
    assert found.bytes.tolist() == [(7 << 20) + 2 * HEADER, (2 << 20) + HEADER]


def test_a_shared_row_stands_for_a_round():
    """Rank 0's clients were last seen in the rounds 3, 3, 5; rank 1's in 3 and never."""
    owner = np.array([0, 0, 0, 1, 1])
    found = Occupancy(owner, 2, 8, keep=2, shared=True, memory=False)
    found.commit(last(3, 3, 5, 3, 0))
    assert found.states.tolist() == [2, 1]
    alone = Occupancy(owner, 2, 8, keep=2, shared=False, memory=False)
    alone.commit(last(3, 3, 5, 3, 0))
    assert alone.states.tolist() == [3, 1]


@pytest.mark.parametrize("kind", [Hdf5Store, MemoryStore])
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_store_takes_as_much(tmp_path, monkeypatch, kind, keep):
    """Random visits; as many bytes as the files have, at every commit."""
    for name, value in (("FIRST_ROWS", 4), ("FIRST_BYTES", 0), ("FILE_BYTES", 32 * 400)):
        monkeypatch.setattr(f"hpcfl.store.pool.{name}", value)
    random = np.random.default_rng(keep)
    owner, mine = np.zeros(CLIENTS, np.int64), list(range(CLIENTS))
    root = tmp_path / "stores"
    root.mkdir()
    extra = (0,) if kind is Hdf5Store else ()
    store = kind(root, 0, "a", mine, SCHEMA, *extra)
    found = Occupancy(owner, 1, SCHEMA.bytes, keep, shared=False, memory=kind is MemoryStore)
    seen, folders = np.zeros(CLIENTS, np.int64), []
    for t in range(1, 41):
        for client in random.choice(CLIENTS, 5, replace=False):
            store.stage(int(client), State(torch.full((100,), float(t))))
            seen[client] = t
        if t % 4:
            continue
        folder = tmp_path / f"{t}"
        folder.mkdir()
        for written in store.commit(folder):
            written.result()
        found.commit(seen.copy())
        assert found.bytes.tolist() == [sum(file.stat().st_size for file in root.iterdir())]
        folders = [*folders, folder][-keep:]
        store.keep(folders)
    store.close()
