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
    """What tells this file from another of the same name, without reading it.

    Raises:
        DiskError: the disk fails, which tells nothing about the file.
    """
    try:
        with disk_errors():
            found = path.stat()
    except OSError:  # whoever reads it says so
        return None
    return found.st_size, found.st_mtime_ns


def stamps(root: Path, names: Iterable[str]) -> list[tuple[str, Stamp]]:
    """Files below ``root``, by name."""
    return [(name, stamp(root / name)) for name in names]


def source_fingerprint(about: object) -> str:
    """Of anything that JSON can hold."""
    return blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()


def same(path: Path, found: object, expected: str | bytes) -> None:
    """Compare the origin that a prepared file tells with that of the present files.

    Raises:
        DataError: it is another one.
    """
    if found != expected:
        raise DataError(f"{path}: made from other files: remove it and prepare again")
