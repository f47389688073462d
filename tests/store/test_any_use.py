"""The stores on disk against a dict, whatever the order of use and however late the disk is."""

import time
from random import Random

import pytest

from hpcfl.store.footprint import footprint
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from hpcfl.store.scratch import ScratchStore, scratch_folder
from hpcfl.store.segment import Segment

CLIENTS, COHORT, ROUNDS = 20, 8, 25


@pytest.fixture
def late(monkeypatch):
    """Reads and writes begin up to two milliseconds late, so that threads overtake each other."""

    def delayed(call, random):
        def later(self, *arguments):
            time.sleep(random.random() / 500)
            return call(self, *arguments)

        return later

    for name in ("fill", "write"):
        monkeypatch.setattr(Segment, name, delayed(getattr(Segment, name), Random(name)))


class Checkpoints:
    """Those of one store, of which two are kept; each is written while rounds go on."""

    def __init__(self, store, folder, root, schema, bits):
        self.store, self.folder = store, folder
        self.root, self.schema, self.bits = root, schema, bits
        self.pending, self.kept = None, []

    def begin(self, states):
        folder = self.folder / f"{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        self.pending = folder, self.store.snapshot(folder), dict(states)

    def commit(self):
        """Wait for the pending one, then compare all that are kept with what they should hold."""
        if self.pending is None:
            return
        folder, written, states = self.pending
        for future in written:
            future.result()
        self.pending, self.kept = None, [*self.kept[-1:], (folder, states)]
        self.store.retain([folder for folder, _ in self.kept])
        for folder, states in self.kept:
            table = Table.load(folder, self.root)
            assert sorted(states) == table.clients.tolist()
            with Reader(table, self.schema) as reader:
                for client, state in states.items():
                    assert self.bits(reader.read(client)) == self.bits(state)


@pytest.mark.slow
@pytest.mark.parametrize("cached", [0, 1, 3, COHORT + 2])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scratch", [False, True])
def test_every_state_and_every_checkpoint_is_right(
    late, root, schema, make, bits, tmp_path, cached, seed, scratch
):
    """Rounds load and save a cohort, some of them the same state, while checkpoints are written."""
    random, size = Random(seed), cached * footprint(schema)
    store = Hdf5Store(root, 0, "a", range(CLIENTS), schema, size)
    if scratch:
        near = scratch_folder(tmp_path / "disk", tmp_path, 0)
        store = ScratchStore(Hdf5Store(near, 0, "b", range(CLIENTS), schema, size), store, near)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    checkpoints, newest = Checkpoints(store, folder, root, schema, bits), {}
    coming = random.sample(range(CLIENTS), COHORT)
    for t in range(ROUNDS):
        cohort, coming = coming, random.sample(range(CLIENTS), COHORT)
        store.prefetch([*cohort, *coming])
        for client in cohort:
            found = store.load(client)
            assert (found is None) == (client not in newest)
            assert found is None or bits(found) == bits(newest[client])
        shared = make(CLIENTS, t)
        for client in cohort:
            newest[client] = shared if random.random() < 0.3 else make(client, t)
            store.save(client, newest[client])
        if random.random() < 0.5:
            checkpoints.commit()
        if not checkpoints.pending and random.random() < 0.5:
            checkpoints.begin(newest)
    checkpoints.commit()
    store.close()
