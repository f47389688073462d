"""Inputs from memory and from a file: the same, read ahead, and no more than asked for."""

from threading import Event

import numpy as np
import pytest
import torch

from hpcfl.errors import DataError
from hpcfl.local.supply import AHEAD, PIECE, FromFile, InMemory, supply

CPU = torch.device("cpu")
TABLE = torch.arange(200 * 2, dtype=torch.uint8).view(200, 2)
ROWS = [np.arange(k, 200, 5)[::-1].copy() for k in range(5)]  # 40 examples each, in no order


class Shelf:
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


def test_a_tensor_is_served_from_memory():
    assert isinstance(supply(TABLE, ROWS, CPU), InMemory)
    assert isinstance(supply(Shelf(), ROWS, CPU), FromFile)


@pytest.mark.parametrize("expected", [[], [0, 1, 2, 3, 4], [3, 0], [0, 1, 2, 0, 1, 2, 4]])
def test_file_and_memory_give_the_same(expected):
    """Whatever is expected, and in whatever order the clients then come."""
    from_file, in_memory = FromFile(Shelf(), ROWS, CPU), InMemory(TABLE, ROWS, CPU)
    from_file.expect(expected)
    for client in [0, 1, 2, 0, 4, 4, 3]:
        for positions in (torch.tensor([39, 0, 7]), torch.arange(40)):
            found = from_file.take(client, positions)
            assert torch.equal(found, in_memory.take(client, positions))
            assert torch.equal(found, TABLE[torch.from_numpy(ROWS[client])[positions]])


def test_streams_batches_in_order():
    batches = [np.arange(k, min(k + 30, 200)) for k in range(0, 200, 30)]
    shelf = Shelf()
    for made in (FromFile(shelf, ROWS, CPU), InMemory(TABLE, ROWS, CPU)):
        found = list(made.stream(batches))
        assert [len(inputs) for inputs in found] == [30] * 6 + [20]
        assert torch.equal(torch.cat(found), TABLE)
    assert sorted(shelf.read_rows) == list(range(200))


def test_reads_the_next_clients_while_one_trains():
    """And no others; a client that is read is not read again while it trains."""
    shelf = Shelf()
    ahead = FromFile(shelf, ROWS, CPU)
    ahead.expect([3, 1, 4, 0, 2])
    for _ in range(3):
        ahead.take(3, torch.tensor([0]))
    ahead._threads.shutdown(wait=True)
    assert read_by(shelf) == sorted([3, 1, 4][: 1 + AHEAD])
    assert len(shelf.read_rows) == 40 * (1 + AHEAD)


def test_a_client_that_comes_twice_is_read_for_both():
    """All clients of a cohort are surveyed before the first one trains."""
    shelf = Shelf()
    ahead = FromFile(shelf, ROWS, CPU)
    ahead.expect([0, 1, 2, 3, 0, 1, 2, 3])
    for client in (0, 1, 2, 3, 0, 1, 2, 3):
        for step in range(3):
            ahead.take(client, torch.tensor([step]))
    ahead._threads.shutdown(wait=True)
    assert len(shelf.read_rows) == 8 * 40


def test_waits_for_what_is_being_read():
    shelf, go = Shelf(), Event()
    plain = shelf.read
    shelf.read = lambda rows: plain(rows) if go.wait(60) else None
    ahead = FromFile(shelf, ROWS, CPU)
    ahead.expect([2])
    assert shelf.read_rows == []
    go.set()
    assert len(ahead.take(2, torch.arange(40))) == 40


def test_damage_is_told_by_the_client_that_needs_it():
    """Not by the one that trains while it is read."""
    ahead = FromFile(Shelf(damaged=ROWS[1][PIECE + 1]), ROWS, CPU)
    ahead.expect([0, 1])
    assert len(ahead.take(0, torch.arange(40))) == 40
    with pytest.raises(DataError, match="is damaged"):
        ahead.take(1, torch.tensor([0]))
