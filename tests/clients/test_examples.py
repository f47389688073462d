"""Inputs from memory and from a file: the same, read ahead, and no more than asked for."""

from threading import Event

import numpy as np
import pytest
import torch

from hpcfl.clients.examples import READ_AHEAD, READ_CHUNK, FromFile, InMemory, example_source
from hpcfl.errors import DataError
from hpcfl.types import Examples

CPU = torch.device("cpu")
TABLE = torch.arange(200 * 2).remainder(251).to(torch.uint8).view(200, 2)
LABELS = torch.arange(200) * 3
ROWS = [np.arange(k, 200, 5)[::-1].copy() for k in range(5)]  # 40 examples each, in no order


class StateArena:
    """A file of inputs that notes what is read."""

    shape, dtype, workers = (200, 2), torch.uint8, 2

    def __init__(self, damaged=None):
        self.read_rows, self.damaged = [], damaged

    def read(self, rows):
        if self.damaged in rows:
            raise DataError(f"row {self.damaged} is damaged")
        self.read_rows += rows.tolist()
        return TABLE[torch.from_numpy(rows)]


def read_by(shelf):
    """The clients of which something was read."""
    return sorted({row % 5 for row in shelf.read_rows})


def from_file(shelf=None):
    return FromFile(shelf or StateArena(), LABELS, ROWS, CPU)


def batches(*positions):
    return [np.array(own) for own in positions]


def test_a_tensor_is_served_from_memory():
    assert isinstance(example_source(Examples(TABLE, LABELS), ROWS, CPU), InMemory)
    assert isinstance(example_source(Examples(StateArena(), LABELS), ROWS, CPU), FromFile)


@pytest.mark.parametrize("whole", [1000, 79], ids=["whole", "by batches"])
@pytest.mark.parametrize("expected", [[], [0, 1, 2, 3, 4], [3, 0], [0, 1, 2, 0, 1, 2, 4]])
def test_file_and_memory_give_the_same(expected, whole, monkeypatch):
    """Whatever is expected, in whatever order the clients then come; 80 bytes are a client's."""
    monkeypatch.setattr("hpcfl.clients.examples.WHOLE_CLIENT_BYTES", whole)
    read, held = from_file(), InMemory(TABLE, LABELS, ROWS, CPU)
    read.prefetch(expected)
    asked = batches([39, 0, 7], range(40), [1], [2], [3, 4], [5])
    for client in [0, 1, 2, 0, 4, 4, 3]:
        found, same = list(read.of_client(client, asked)), list(held.of_client(client, asked))
        assert len(found) == len(same) == len(asked)
        for positions, one, other in zip(asked, found, same, strict=True):
            rows = torch.from_numpy(ROWS[client][positions])
            for batch in (one, other):
                assert torch.equal(batch.inputs, TABLE[rows])
                assert torch.equal(batch.labels, LABELS[rows])


def test_streams_batches_in_order():
    rows = [np.arange(k, min(k + 30, 200)) for k in range(0, 200, 30)]
    shelf = StateArena()
    for made in (from_file(shelf), InMemory(TABLE, LABELS, ROWS, CPU)):
        found = list(made.stream(rows))
        assert [len(batch.inputs) for batch in found] == [30] * 6 + [20]
        assert torch.equal(torch.cat([batch.inputs for batch in found]), TABLE)
        assert torch.equal(torch.cat([batch.labels for batch in found]), LABELS)
    assert sorted(shelf.read_rows) == list(range(200))


def test_reads_the_next_clients_while_one_trains():
    """And no others; a client that is read is not read again while it trains."""
    shelf = StateArena()
    ahead = from_file(shelf)
    ahead.prefetch([3, 1, 4, 0, 2])
    assert len(list(ahead.of_client(3, batches([0], [1], [0])))) == 3
    ahead._threads.shutdown(wait=True)
    assert read_by(shelf) == sorted([3, 1, 4][: 1 + READ_AHEAD])
    assert len(shelf.read_rows) == 40 * (1 + READ_AHEAD)


def test_a_large_client_is_read_batch_by_batch(monkeypatch):
    """No more of it than the batches that were asked for and those ahead."""
    monkeypatch.setattr("hpcfl.clients.examples.WHOLE_CLIENT_BYTES", 79)
    shelf = StateArena()
    ahead = from_file(shelf)
    ahead.prefetch([3, 1])
    assert not shelf.read_rows
    coming = ahead.of_client(3, batches(*([k] for k in range(40))))
    next(coming)
    next(coming)
    ahead._threads.shutdown(wait=True)
    assert sorted(shelf.read_rows) == sorted(ROWS[3][: 2 + READ_AHEAD].tolist())


def test_a_client_that_comes_twice_is_read_for_both():
    """All clients of a cohort are surveyed before the first one trains."""
    shelf = StateArena()
    ahead = from_file(shelf)
    ahead.prefetch([0, 1, 2, 3, 0, 1, 2, 3])
    for client in (0, 1, 2, 3, 0, 1, 2, 3):
        list(ahead.of_client(client, batches([0], [1], [2])))
    ahead._threads.shutdown(wait=True)
    assert len(shelf.read_rows) == 8 * 40


def test_waits_for_what_is_being_read():
    shelf, go = StateArena(), Event()
    plain = shelf.read
    shelf.read = lambda rows: plain(rows) if go.wait(60) else None
    ahead = from_file(shelf)
    ahead.prefetch([2])
    assert shelf.read_rows == []
    go.set()
    (batch,) = ahead.of_client(2, batches(range(40)))
    assert len(batch.inputs) == 40


def test_damage_is_told_by_the_client_that_needs_it():
    """Not by the one that trains while it is read."""
    ahead = from_file(StateArena(damaged=ROWS[1][READ_CHUNK + 1]))
    ahead.prefetch([0, 1])
    assert len(list(ahead.of_client(0, batches([0])))) == 1
    with pytest.raises(DataError, match="is damaged"):
        next(ahead.of_client(1, batches([0])))
