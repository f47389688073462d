"""Download files of a data set's publisher, and check files that are there."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from hpcfl.errors import DataError, DiskError, is_disk_failure
from hpcfl.io.files import read_error
from hpcfl.io.lock import locked
from hpcfl.io.regular import open_binary, open_fd

T = TypeVar("T")
_BLOCK = 1 << 20  # bytes read at a time
_TIMEOUT = 30.0  # seconds without a byte
_DIGITS = 18  # of a size


class Track(Protocol):
    """Shows the progress of a long operation."""

    def __call__(self, items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
        """The same items; shows progress on ``what``, out of ``total``."""
        ...


@dataclass(frozen=True)
class PublishedFile:
    """One file as it is published."""

    name: str
    """Its path below the data set's root."""
    url: str
    md5: str | None = None
    """md5 of the file, in hexadecimal; None where the publisher gives none."""
    sha256: str | None = None
    """sha256 of the file, in hexadecimal; None where the publisher gives none."""

    def check(self, path: Path, track: Track) -> None:
        """Compare a file with the publisher's checksums.

        Raises:
            DataError: it is another one, or cannot be read.
            DiskError: the disk fails.
        """
        for algorithm, expected in (("md5", self.md5), ("sha256", self.sha256)):
            if expected is not None:
                _check(path, algorithm, expected, track)


def provide(root: Path, files: Sequence[PublishedFile], track: Track) -> None:
    """Make sure that these files are in ``root`` and are the publisher's; download missing ones.

    A download that was interrupted resumes where it ended; one that another process is at is waited
    for.

    Raises:
        DataError: a file cannot be had, which says where each missing one belongs; or it is not
            the publisher's.
        DiskError: the disk is full or fails.
    """
    missing = []
    for file in files:
        path = root / file.name
        if path.exists():
            file.check(path, track)
        else:
            missing.append(file)
    for k, file in enumerate(missing):
        path = root / file.name
        try:
            with locked(path):
                if not path.exists():
                    _download(path, file, track)
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()
            if isinstance(error, OSError) and is_disk_failure(error):  # see `_network`
                raise DiskError(
                    f"{path}: cannot be fetched: {error.strerror}; make room or repair the disk"
                ) from error
            wanted = "; ".join(f"{other.url} as {root / other.name}" for other in missing[k:])
            raise DataError(
                f"{root}: {file.name} is missing and cannot be downloaded ({error}); put there by "
                f"hand: {wanted}"
            ) from error


def check_count(path: Path, what: str, found: int, expected: int) -> None:
    """Compare a number with the publisher's number.

    Raises:
        DataError: there are more or fewer.
    """
    if found != expected:
        raise DataError(f"{path}: found {found} {what}, the published data has {expected}")


def require_digest(path: Path, algorithm: str, found: str, published: str) -> None:
    """Compare a file's checksum with the publisher's.

    Raises:
        DataError: it is another.
    """
    if found != published:
        raise DataError(
            f"{path}: its {algorithm} is {found}, the published is {published}; it is damaged or "
            "another file: remove it and fetch it again"
        )


def quiet(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """The ``Track`` that shows nothing."""
    return items


def _check(path: Path, algorithm: str, expected: str, track: Track) -> None:
    """Read a file and compare its checksum by this algorithm of ``hashlib``."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with open_binary(path) as file:
            blocks = iter(lambda: file.read(_BLOCK), b"")
            for block in track(blocks, f"checking {path.name}", -(-path.stat().st_size // _BLOCK)):
                digest.update(block)
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise read_error(error, message, DataError) from error
    require_digest(path, algorithm, digest.hexdigest(), expected)


def _download(path: Path, file: PublishedFile, track: Track) -> None:
    """Download into PATH.part, which is renamed to PATH when it is complete."""
    part = path.with_name(path.name + ".part")
    total = _append(part, file, track)
    found = part.stat().st_size
    if total is not None and found < total:
        raise OSError(f"the connection ended after {found} of {total} bytes; say it again")
    if total is not None and found > total:
        part.unlink()
        raise DataError(f"{part}: {found} bytes, the published file has {total}; fetch it again")
    try:
        file.check(part, track)
    except DataError:
        part.unlink()
        raise
    part.replace(path)


def _append(part: Path, file: PublishedFile, track: Track) -> int | None:
    """Download the bytes that ``part`` lacks; return the size of the file, if it is known."""
    begun = part.stat().st_size if part.exists() else 0
    request = Request(file.url, headers={"Range": f"bytes={begun}-"} if begun else {})  # noqa: S310
    try:
        with _network():
            answer = urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except HTTPError as error:
        if error.code != 416 or not begun:
            raise
        with error:  # there is nothing behind these bytes: "bytes */TOTAL"
            return _number(error.headers.get("Content-Range", "").rpartition("/")[2])
    with answer:
        if answer.status != 206:  # the server sends the file from its start
            begun = 0
        left = _number(answer.headers.get("Content-Length", ""))
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if begun else os.O_TRUNC)
        with os.fdopen(open_fd(part, flags), "wb") as out:
            blocks = iter(lambda: _received(answer), b"")
            steps = None if left is None else -(-left // _BLOCK)
            for block in track(blocks, f"fetching {file.name}", steps):
                out.write(block)
    return None if left is None else begun + left


def _received(answer: Any) -> bytes:
    """The next bytes of a response."""
    with _network():
        content: bytes = answer.read(_BLOCK)
        return content


@contextmanager
def _network() -> Iterator[None]:
    """Convert an error of a connection to one without errno, as disks raise some of the same."""
    try:
        yield
    except URLError:
        raise
    except OSError as error:
        raise OSError(str(error)) from error


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
