"""A digest of the names, sizes and times of the files that a prepared file was made from.

A preparation compares it while those files are there.  A job asks for the prepared file alone.
"""

import json
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from hpcfl.errors import DataError, disk_errors

Stamp = tuple[int, int] | None
"""Size and time of the last change, in nanoseconds; None where no file is."""


def stamp(path: Path) -> Stamp:
    """Size and time of a file, which identify its contents without reading them.

    Raises:
        DiskError: the disk fails, which says nothing about the file.
    """
    try:
        with disk_errors():
            found = path.stat()
    except OSError:  # its reader reports the error
        return None
    return found.st_size, found.st_mtime_ns


def stamps(root: Path, names: Iterable[str]) -> list[tuple[str, Stamp]]:
    """Files below ``root``, by name."""
    return [(name, stamp(root / name)) for name in names]


def source_fingerprint(about: object) -> str:
    """The digest of any JSON value."""
    return blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()


def require_same_sources(path: Path, found: object, expected: str | bytes) -> None:
    """Compare the origin in a prepared file with that of the present source files.

    Raises:
        DataError: they differ.
    """
    if found != expected:
        raise DataError(f"{path}: made from other files: remove it and prepare again")
