"""The row table of a checkpoint: the segment and row of each client's state.

Every rank writes its rows to ``rows-RANK.npz`` in the checkpoint's folder; ``Table`` joins the rows
of all ranks.  Where states have a shared part (``hpcfl.store.shared``), the row tables and segments
of that part are in subfolders ``shared``.
"""

import io
import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from hpcfl.errors import DataError, StoreError
from hpcfl.io.atomic import STANDS, write_file
from hpcfl.io.files import read_arrays
from hpcfl.store import segment
from hpcfl.types import IntArray

SHARED = "shared"


class Rows(NamedTuple):
    """The row table of one rank: n states (arrays of n numbers)."""

    clients: IntArray
    segments: IntArray  # an index into names
    rows: IntArray
    crcs: IntArray  # crc32 of the state's bytes
    names: tuple[str, ...]  # file names of all segments of the rank, also of those without states


class RowEntry(NamedTuple):
    """The segment file and the row of a state, and its checksum."""

    path: Path
    row: int
    crc: int


def write(folder: Path, rank: int, rows: Rows) -> None:
    """Write a rank's row table into a checkpoint's folder, and fsync it.

    Raises:
        DiskError: the disk is full or fails.
    """
    buffer = io.BytesIO()
    arrays = {name: getattr(rows, name) for name in Rows._fields[:-1]}
    np.savez(buffer, names=np.array(rows.names, dtype=np.str_), **arrays)
    write_file(folder / file_name(rank), buffer.getvalue(), advice=STANDS)


def read(folder: Path, rank: int, content: bytes | None = None) -> Rows:
    """Read the row table of a rank.

    Args:
        folder: the checkpoint's.
        rank: which one.
        content: of the file, where it was read already.

    Raises:
        StoreError: it is missing or damaged.
    """
    path = folder / file_name(rank)
    if content is None and not path.exists():
        raise StoreError(
            f"{path}: the file is missing, expected the row table of rank {rank}; "
            "resume from an older checkpoint"
        )
    try:
        found = read_arrays(path, Rows._fields, content=content)
    except DataError as error:
        raise StoreError(
            f"{error}: damaged, expected a row table; resume from an older checkpoint"
        ) from error
    names = tuple(map(str, found.pop("names").reshape(-1).tolist()))
    rows = Rows(**found, names=names)
    _check(path, rows)
    return rows


def ranks(folder: Path, contents: Collection[str] | None = None) -> int:
    """How many ranks wrote a row table into a checkpoint's folder.

    Args:
        folder: the checkpoint's.
        contents: the names of its files; None: those that are there now.

    Raises:
        StoreError: there is none, or that of a lower rank is missing.
    """
    names = [path.name for path in folder.glob("rows-*.npz")] if contents is None else contents
    files = {name for name in names if _FILE.fullmatch(name)}
    missing = [rank for rank in range(max(1, len(files))) if file_name(rank) not in files]
    if missing:
        raise StoreError(
            f"{folder / file_name(missing[0])}: the file is missing, found row tables of "
            f"{len(files)} ranks in the folder; resume from an older checkpoint"
        )
    return len(files)


def segments_in(folder: Path, contents: Mapping[str, bytes]) -> set[str]:
    """The segments that a checkpoint names: paths relative to the folder of the segments.

    Args:
        folder: the checkpoint's.
        contents: of its row tables, by name.

    Raises:
        StoreError: a row table is damaged.
    """
    names: set[str] = set()
    for name, content in contents.items():
        file = folder / name
        (rank,) = map(int, re.findall(r"\d+", file.name))
        below = file.parent.relative_to(folder)
        names |= {(below / one).as_posix() for one in read(file.parent, rank, content).names}
    return names


def is_row_table(name: str) -> bool:
    """Whether a file of a checkpoint is a row table, also that of a shared part."""
    return bool(_FILE.fullmatch(name.removeprefix(f"{SHARED}/")))


_FILE = re.compile(r"rows-\d+\.npz")


@dataclass(frozen=True)
class Table:
    """The row table of all ranks, or of one (arrays of n states, sorted by client)."""

    folder: Path
    """The checkpoint's."""
    clients: IntArray
    segments: IntArray  # an index into paths
    rows: IntArray
    crcs: IntArray
    paths: tuple[Path, ...]
    owners: tuple[int, ...]
    """For each path, the rank that wrote it."""
    ranks: int
    """How many row tables there are; the caller compares it with the manifest's number of ranks."""
    shared: "Table | None" = None
    """The row table of the shared parts of the same clients' states, if states have one."""

    @classmethod
    def load(
        cls,
        folder: Path,
        root: Path,
        contents: Mapping[str, bytes] | None = None,
        only: int | None = None,
    ) -> Self:
        """Read the row tables of all ranks, or of one.

        Args:
            folder: the checkpoint's.
            root: the folder of the segments.
            contents: of the row tables by name, where they were read already.
            only: the rank whose rows are wanted; of a rank that wrote none there are none.

        Raises:
            StoreError: a row table is missing or damaged, or a client is in two of them.
        """
        below: Mapping[str, bytes] | None = None
        if contents is not None:
            start = f"{SHARED}/"
            below = {n.removeprefix(start): c for n, c in contents.items() if n.startswith(start)}
        has_shared = (folder / SHARED).is_dir() if below is None else bool(below)
        shared = cls.load(folder / SHARED, root / SHARED, below, only) if has_shared else None
        count, found = ranks(folder, contents), contents or {}
        wanted = [rank for rank in range(count) if only in (None, rank)]
        tables = [read(folder, rank, found.get(file_name(rank))) for rank in wanted]
        if not tables:
            none = np.zeros(0, np.int64)
            tables = [Rows(none, none, none, none, ())]
        starts = np.cumsum([0] + [len(table.names) for table in tables])
        clients = np.concatenate([table.clients for table in tables])
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
        shifted = [table.segments + start for table, start in zip(tables, starts, strict=False)]
        return cls(
            folder,
            clients,
            np.concatenate(shifted)[order],
            np.concatenate([table.rows for table in tables])[order],
            np.concatenate([table.crcs for table in tables])[order],
            tuple(root / name for table in tables for name in table.names),
            tuple(r for r, table in zip(wanted, tables, strict=False) for _ in table.names),
            count,
            shared,
        )

    @property
    def own(self) -> "Table":
        """This table without that of the shared parts."""
        return replace(self, shared=None)

    def for_clients(self, ids: Sequence[int] | IntArray) -> "Table":
        """The entries of these clients; clients without a state have none."""
        chosen = np.flatnonzero(np.isin(self.clients, np.asarray(ids, np.int64)))
        return replace(
            self,
            clients=self.clients[chosen],
            segments=self.segments[chosen],
            rows=self.rows[chosen],
            crcs=self.crcs[chosen],
        )

    def find(self, client: int) -> RowEntry | None:
        """The entry of a client, or None if it has no state."""
        at = int(np.searchsorted(self.clients, client))
        if at == len(self.clients) or self.clients[at] != client:
            return None
        return self.entry(at)

    def entry(self, at: int) -> RowEntry:
        """The entry of the ``at``-th client."""
        return RowEntry(self.paths[self.segments[at]], int(self.rows[at]), int(self.crcs[at]))


def prune(root: Path, keep_names: Iterable[str], earlier: Container[str]) -> None:
    """Delete the segments of earlier sessions of the run that no kept checkpoint names.

    Only rank 0 calls it: other ranks may see an older content of the folder on a network disk.

    Args:
        root: the folder of the segments.
        keep_names: what ``segments_in`` returns for the kept checkpoints.
        earlier: the ids of those sessions; files of others, complete or not, are not deleted.
    """
    keep = set(keep_names)
    for path in sorted(root.rglob("*")):
        match = segment.NAME.fullmatch(path.name)
        if (
            match
            and match["session_id"] in earlier
            and path.relative_to(root).as_posix() not in keep
        ):
            path.unlink()


def file_name(rank: int) -> str:
    """The name of a rank's row table."""
    return f"rows-{rank:04d}.npz"


def files(folder: Path, ranks: int) -> list[str]:
    """The names of the row tables of ``ranks`` ranks, relative to the checkpoint's folder."""
    names = [file_name(rank) for rank in range(ranks)]
    return names + [f"{SHARED}/{n}" for n in names] if (folder / SHARED).is_dir() else names


def _check(path: Path, rows: Rows) -> None:
    """Refuse a table that names segments or rows that cannot be."""
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
