"""The row table of a checkpoint: the segment and row of each client's state.

Every rank writes ``rows-RANK.npz`` into the checkpoint's folder; ``Table`` is all of them.  Where
states have a shared part (see ``hpcfl.store.shared``), its tables and segments lie in folders
``shared`` beside the others.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DataError, StoreError
from hpcfl.io.atomic import STANDS, write_file
from hpcfl.io.files import read_arrays
from hpcfl.store import segment

SHARED = "shared"

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """One rank's part: n states in named segments (arrays of n numbers)."""

    clients: Ints
    segments: Ints  # index into names
    rows: Ints
    crcs: Ints  # crc32 of the state's bytes
    names: tuple[str, ...]  # every segment of the rank, with or without states, below the root


class Place(NamedTuple):
    """Where a state lies, and its checksum."""

    path: Path
    row: int
    crc: int


def write(folder: Path, rank: int, rows: Rows) -> None:
    """Write a rank's part into a checkpoint's folder, durably.

    Raises:
        DiskError: the disk is full or fails.
    """
    buffer = io.BytesIO()
    arrays = {name: getattr(rows, name) for name in Rows._fields[:-1]}
    np.savez(buffer, names=np.array(rows.names, dtype=np.str_), **arrays)
    write_file(folder / file_name(rank), buffer.getvalue(), advice=STANDS)


def read(folder: Path, rank: int) -> Rows:
    """Read a rank's part.

    Raises:
        StoreError: it is missing or damaged.
    """
    path = folder / file_name(rank)
    if not path.exists():
        raise StoreError(
            f"{path}: the file is missing, expected the row table of rank {rank}; "
            "resume from an older checkpoint"
        )
    try:
        found = read_arrays(path, Rows._fields)
    except DataError as error:
        raise StoreError(
            f"{error}: damaged, expected a row table; resume from an older checkpoint"
        ) from error
    names = tuple(map(str, found.pop("names").reshape(-1).tolist()))
    rows = Rows(**found, names=names)
    _check(path, rows)
    return rows


def ranks(folder: Path) -> int:
    """How many ranks wrote their part of a checkpoint.

    Raises:
        StoreError: there is none, or one of the first is missing.
    """
    files = list(folder.glob("rows-*.npz"))
    missing = [rank for rank in range(max(1, len(files))) if folder / file_name(rank) not in files]
    if missing:
        raise StoreError(
            f"{folder / file_name(missing[0])}: the file is missing, found row tables of "
            f"{len(files)} ranks in the folder; resume from an older checkpoint"
        )
    return len(files)


def named(folders: Iterable[Path]) -> set[str]:
    """The segments that these checkpoints need, by their paths below the segments' folder."""
    names = set()
    for folder in folders:
        names |= {name for rank in range(ranks(folder)) for name in read(folder, rank).names}
        if (folder / SHARED).is_dir():
            names |= {f"{SHARED}/{name}" for name in named([folder / SHARED])}
    return names


@dataclass(frozen=True)
class Table:
    """The row table of all ranks (arrays of n states, sorted by client)."""

    clients: Ints
    segments: Ints  # index into paths
    rows: Ints
    crcs: Ints
    paths: tuple[Path, ...]
    owners: tuple[int, ...]
    """The rank that wrote each path."""
    ranks: int
    """How many ranks wrote the checkpoint: compare it with the manifest's."""
    shared: "Table | None" = None
    """Where the shared parts of the same clients' states lie, if states have one."""

    @classmethod
    def load(cls, folder: Path, root: Path) -> Self:
        """Read every rank's part.

        Args:
            folder: the checkpoint's.
            root: the folder of the segments.

        Raises:
            StoreError: a part is missing or damaged, or a client stands in it twice.
        """
        shared = cls.load(folder / SHARED, root / SHARED) if (folder / SHARED).is_dir() else None
        parts = [read(folder, rank) for rank in range(ranks(folder))]
        starts = np.cumsum([0] + [len(part.names) for part in parts])
        clients = np.concatenate([part.clients for part in parts])
        order = np.argsort(clients, kind="stable")
        clients = clients[order]
        double = clients[1:][clients[1:] == clients[:-1]]
        if double.size:
            raise StoreError(
                f"{folder}: client {double[0]} has two rows, expected one; the row tables are of "
                "different runs: resume from an older checkpoint"
            )
        if shared and not np.array_equal(shared.clients, clients):
            raise StoreError(
                f"{folder / SHARED}: holds other clients than {folder}, expected the same; "
                "resume from an older checkpoint"
            )
        shifted = [part.segments + start for part, start in zip(parts, starts, strict=False)]
        return cls(
            clients,
            np.concatenate(shifted)[order],
            np.concatenate([part.rows for part in parts])[order],
            np.concatenate([part.crcs for part in parts])[order],
            tuple(root / name for part in parts for name in part.names),
            tuple(rank for rank, part in enumerate(parts) for _ in part.names),
            len(parts),
            shared,
        )

    @property
    def own(self) -> "Table":
        """This table without the shared parts."""
        return replace(self, shared=None)

    def for_clients(self, ids: Sequence[int] | Ints) -> "Table":
        """The states of these clients alone; clients without a state are left out."""
        chosen = np.flatnonzero(np.isin(self.clients, np.asarray(ids, np.int64)))
        return replace(
            self,
            clients=self.clients[chosen],
            segments=self.segments[chosen],
            rows=self.rows[chosen],
            crcs=self.crcs[chosen],
        )

    def find(self, client: int) -> Place | None:
        """Where the client's state lies, or None if it has none."""
        at = int(np.searchsorted(self.clients, client))
        if at == len(self.clients) or self.clients[at] != client:
            return None
        return self.place(at)

    def place(self, at: int) -> Place:
        """Where the ``at``-th client's state lies."""
        return Place(self.paths[self.segments[at]], int(self.rows[at]), int(self.crcs[at]))


def prune(root: Path, keep_names: Iterable[str], session: str) -> list[Path]:
    """Delete the segments that no kept checkpoint needs; called by rank 0 alone.

    Args:
        root: the folder of the segments.
        keep_names: what ``named`` says of every kept checkpoint.
        session: the name of the running start; its files, complete or not, are not touched.

    Returns:
        What was deleted.
    """
    keep = set(keep_names)
    deleted = []
    for path in sorted(root.rglob("*")):
        match = segment.NAME.fullmatch(path.name)
        if match and match["session"] != session and path.relative_to(root).as_posix() not in keep:
            path.unlink()
            deleted.append(path)
    return deleted


def file_name(rank: int) -> str:
    """The name of a rank's part."""
    return f"rows-{rank:04d}.npz"


def files(folder: Path, ranks: int) -> list[str]:
    """The names of all row tables that so many ranks wrote into a checkpoint's folder."""
    names = [file_name(rank) for rank in range(ranks)]
    return names + [f"{SHARED}/{n}" for n in names] if (folder / SHARED).is_dir() else names


def _check(path: Path, rows: Rows) -> None:
    """Refuse a table that points outside its own segments."""
    arrays = rows[:-1]
    same = {(array.dtype, array.shape) for array in arrays} == {
        (np.dtype(np.int64), (rows.clients.size,))
    }
    inside = same and all(
        (
            (rows.segments >= 0).all(),
            (rows.segments < len(rows.names)).all(),
            (rows.rows >= 0).all(),
            all(segment.NAME.fullmatch(name) for name in rows.names),
        )
    )
    if not inside:
        raise StoreError(
            f"{path}: its columns do not fit together, expected a row table; "
            "resume from an older checkpoint"
        )
