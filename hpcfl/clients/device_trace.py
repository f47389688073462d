"""Read the devices of clients from a table: a row for each client, or for each of its changes."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.data.tables import read_header, read_table
from hpcfl.errors import DataError
from hpcfl.types import IntArray

SPEEDS, CHANCES = ("examples_per_s", "down_mbps", "up_mbps"), ("available", "fails")
_IDS = ("client", "round")


class DeviceTrace(NamedTuple):
    """The rows of a trace, by client and then by round."""

    population: int
    """N."""
    clients: IntArray
    """[rows]"""
    rounds: IntArray
    """[rows], counted from 1: the first one for which the row holds."""
    columns: Mapping[str, NDArray[np.float64]]
    """[rows], by name."""

    def at(self, round: int) -> dict[str, NDArray[np.float64]]:
        """[N], the columns of every client in ``round``, counted from 0."""
        span = 2 + max(int(self.rounds.max()), round)
        keys = self.clients * span + self.rounds
        wanted = np.arange(self.population) * span + round + 1
        rows = np.searchsorted(keys, wanted, side="right") - 1
        return {name: values[rows] for name, values in self.columns.items()}


def read_trace(path: Path, population: int) -> DeviceTrace:
    """Read a trace.

    Args:
        path: a CSV file with a header; the columns are those of ``Devices.path``.
        population: N.

    Raises:
        DataError: it cannot be read, has a column that is unknown or twice, or no number in a
            place; or a client is unknown, has two rows of one round, or none of round 1.
    """
    header = read_header(path)
    known = (*_IDS, *SPEEDS, *CHANCES)
    for name in header:
        if name not in known or header.count(name) > 1:
            why = "unknown" if name not in known else "there twice"
            raise DataError(
                f"{path}: column {name!r} is {why}, expected some of {', '.join(known)}"
            )
    if "client" not in header or not set(header) & {*SPEEDS, *CHANCES}:
        raise DataError(
            f"{path}: its header is {','.join(header)!r}, expected client and one of "
            f"{', '.join(known[2:])} at least"
        )
    names = [name for name in known[2:] if name in header]
    found = sorted(_rows(path, names, population, "round" in header))
    ids = np.array([row.key for row in found], dtype=np.int64).reshape(-1, 2)
    for before, after in pairwise(found):
        if before.key == after.key:
            raise DataError(f"{after.where}: {_of(*after.key)} has two rows, expected one")
    first = ids[ids[:, 1] == 1, 0]
    if len(first) < population:
        absent = np.setdiff1d(np.arange(population), first)
        raise DataError(
            f"{path}: has no row for {_of(int(absent[0]), 1)}, expected one of each of the "
            f"{population} clients{' in round 1' if 'round' in header else ''}"
        )
    table = np.array([row.values for row in found])
    columns = {name: table[:, k] for k, name in enumerate(names)}
    return DeviceTrace(population, ids[:, 0], ids[:, 1], columns)


class _Row(NamedTuple):
    key: tuple[int, int]
    where: str
    values: tuple[float, ...]


def _rows(path: Path, names: list[str], population: int, has_rounds: bool) -> Iterator[_Row]:
    ids = _IDS if has_rounds else _IDS[:1]
    for row in read_table(path, [*ids, *names]):
        client = _whole(row.where, "client", row.values[0], 0, population - 1)
        round = _whole(row.where, "round", row.values[1], 1, None) if has_rounds else 1
        texts = zip(names, row.values[len(ids) :], strict=True)
        values = tuple(_number(row.where, name, text) for name, text in texts)
        yield _Row((client, round), row.where, values)


def _whole(where: str, name: str, text: str, least: int, most: int | None) -> int:
    found = int(text) if text.isdecimal() and len(text) < 10 else -1
    if found < least or (most is not None and found > most):
        to = f"{least} to {most}" if most is not None else f"a whole number from {least} on"
        raise DataError(f"{where}: {name} is {text!r:.60}, expected {to}")
    return found


def _number(where: str, name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = inf
    if name in CHANCES:
        right, expected = 0 <= found <= 1, "a probability, from 0 to 1"
    else:
        right, expected = isfinite(found) and found > 0, "a number above 0"
    if not right:
        raise DataError(f"{where}: {name} is {text!r:.60}, expected {expected}")
    return found


def _of(client: int, round: int) -> str:
    return f"client {client}" + (f" in round {round}" if round > 1 else "")
