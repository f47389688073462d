"""Write and cut clients.csv: each client's scores, by rank 0, with evaluate.clients: table.

The manifest of a checkpoint names the number of lines, which are fsynced before its commit: a
resume keeps these, and looks at nothing behind them.  Not the number of bytes: new columns make
earlier lines longer.  Nothing in the table is needed to resume: it may be moved away.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpcfl.errors import StoreError, file_error
from hpcfl.io import regular
from hpcfl.io.atomic import STANDS, write_file
from hpcfl.io.files import readable
from hpcfl.runs.log import AppendedFile, LogPosition

ClientRow = Mapping[str, float | int | str | None]
"""A line of clients.csv by its columns."""
_HEAD = b"round,model,data,client,"  # of every table, which is made with its first line


class ClientTable:
    """The table of a run; it is opened, and made, when the first lines are written.

    Args:
        path: of the file; a resume has cut it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._lines: int | None = None
        self._file: AppendedFile | None = None

    def write(self, rows: Sequence[ClientRow]) -> None:
        """Append a line for each of the rows, which all have the same columns.

        Raises:
            DiskError: the disk is full or fails.
            StoreError: the file cannot be read or written, or is damaged.
        """
        if not rows:
            return
        if self._file is None:
            self._file = self._opened(list(rows[0]))
        self._file.append(_lines(self._columns, rows))
        self._lines = self.lines + len(rows)

    @property
    def lines(self) -> int:
        """How many lines it has, that of the columns included; 0 where there is no table.

        Raises:
            StoreError: the file cannot be read.
        """
        if self._lines is None:
            self._lines = _read(self._path).count(b"\n")
        return self._lines

    def _opened(self, columns: Sequence[str]) -> AppendedFile:
        """The file, with these columns and those that it has already."""
        before = _read(self._path)
        self._lines = max(1, before.count(b"\n"))
        own = before.partition(b"\n")[0].decode().split(",") if before else []
        self._columns = [*own, *(name for name in columns if name not in own)]
        if self._columns != own:
            # A resume may have other metrics: earlier lines have nothing in their columns.
            head = dict(zip(self._columns, self._columns, strict=True))
            earlier = csv.DictReader(io.StringIO(before.decode(), newline=""))
            write_file(self._path, _lines(self._columns, [head, *earlier]), advice=STANDS)
        return AppendedFile(self._path, LogPosition(self._path.stat().st_size, 0))

    def sync(self) -> None:
        """Fsync the file.

        Raises:
            DiskError: the disk fails.
        """
        if self._file:
            self._file.sync()

    def require_in_place(self) -> None:
        """Refuse to commit a checkpoint where it is no longer the file that this run writes.

        Raises:
            LostFileError: it was deleted, replaced or changed.
        """
        if self._file:
            self._file.require_in_place()

    def close(self) -> None:
        """Close the file.

        Raises:
            DiskError: the disk fails.
        """
        if self._file:
            self._file.close()


def _lines(columns: Sequence[str], rows: Iterable[ClientRow]) -> bytes:
    """Lines of CSV; a number has the shortest form that gives the same bits, None has none."""
    text = io.StringIO(newline="")
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def table_until(path: Path, round: int, most: int | None = None) -> bytes:
    """The table up to the checkpoint of a round; empty where there is none.

    A last line without its line break, which is being written, is of a later round.

    Args:
        path: of the file.
        round: of the checkpoint.
        most: the lines that its manifest names; None: all are read, as of a checkpoint that an
            earlier version wrote, and rounds tell which are kept.

    Raises:
        StoreError: it cannot be read, or is no table, or a line is damaged.
    """
    content, lines = _read(path), []
    if content and not content.startswith(_HEAD):
        raise StoreError(
            f"{path}:1: found {content[:40]!r}, expected the columns {_HEAD.decode()}...; the run "
            "did not write this file: move it away"
        )
    for number, line in enumerate(content.splitlines(keepends=True)[:most], 1):
        found = line.partition(b",")[0]
        if number > 1 and line.endswith(b"\n") and not found.isdigit():
            raise StoreError(
                f"{path}:{number}: found {line[:40]!r}, expected a line that begins with its "
                "round; put the file back from a copy, or move it away"
            )
        if not line.endswith(b"\n") or (number > 1 and int(found) > round):
            break
        lines.append(line)
    # The evaluation before round 1 follows the checkpoint of round 0, as its line of the log does.
    return b"".join(lines) if round else b""


def truncate_table(path: Path, round: int, most: int | None = None) -> None:
    """Cut the table behind the lines up to the checkpoint of a round; see ``table_until``.

    Raises:
        DiskError: the disk is full or fails.
        StoreError: it cannot be read or written, or a line is damaged.
    """
    # Not cut in place: other hard links may lead to the file, of a copy of the run or a backup.
    kept = table_until(path, round, most)
    if not kept:
        path.unlink(missing_ok=True)
    elif path.stat().st_size > len(kept):
        write_file(path, kept, advice=STANDS)


def _read(path: Path) -> bytes:
    """The file; empty where there is none.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        file = regular.open_binary(path)
    except FileNotFoundError:
        return b""
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror}; repair the disk, or move the file away"
        raise file_error(e, message, StoreError) from e
    with file, readable(path):
        return file.read()
