"""The files that a job reads, and a digest of each."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from hpcfl.data.hdf5 import extents
from hpcfl.errors import DataError, file_error
from hpcfl.io.regular import open_binary

LARGE = 2 << 30
"""Bytes up to which a prepared file, too, is digested as a whole."""
_BLOCK = 1 << 20  # bytes read at a time
_DIGITS = 12  # of a digest, in messages


@dataclass(frozen=True)
class InputFile:
    """A file that a job reads."""

    path: Path
    label: str | None = None
    """Its name in records and messages; None: the name follows from its path."""
    skipped_datasets: tuple[str, ...] = ()
    """Datasets with the examples of an HDF5 file made by ``hpcfl data prepare``.

    Above ``LARGE`` bytes they are left out of the digest; labels, clients, lengths and the sources'
    fingerprint (``hpcfl.data.source_fingerprint``) are not.  In-place changes inside them go
    unnoticed; preparing again from sources with other times changes the digest.
    """

    def digest(self, stopped: Event) -> str:
        """The sha256 of its content, as ``sha256sum`` prints it, behind its kind.

        Args:
            stopped: once it is set, nobody wants the digest any more, and the rest is not read.

        Raises:
            DataError: it cannot be read.
            DiskError: the disk fails.
        """
        try:
            size = self.path.stat().st_size
            skipped = (
                extents(self.path, self.skipped_datasets)
                if self.skipped_datasets and size > LARGE
                else []
            )
            found = hashlib.sha256()
            if skipped:
                found.update(repr((size, skipped)).encode())
            with open_binary(self.path, buffering=False) as file:
                buffer = memoryview(bytearray(_BLOCK))
                for begin, end in _between(skipped, size):
                    file.seek(begin)
                    while begin < end and not stopped.is_set():
                        count = file.readinto(buffer[: end - begin])
                        if not count:
                            break
                        found.update(buffer[:count])
                        begin += count
        except OSError as error:
            message = f"{self.path}: cannot be read: {error.strerror or error}"
            raise file_error(error, message, DataError) from error
        return f"{'index-sha256' if skipped else 'sha256'}:{found.hexdigest()}"


def input_files(*paths: Path) -> tuple[InputFile, ...]:
    """These files, each under its path."""
    return tuple(map(InputFile, paths))


def shown(digest: str) -> str:
    """A digest for messages: its kind and its first digits."""
    kind, _, value = digest.partition(":")
    return f"{kind} {value[:_DIGITS]}"


def _between(skipped: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file of ``size`` bytes outside of ``skipped``, which ascend."""
    begin = 0
    for start, end in skipped:
        yield begin, start
        begin = end
    yield begin, size
