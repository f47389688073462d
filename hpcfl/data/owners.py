"""Files that a data set's owners publish: fetched where there is internet, checked everywhere."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from hpcfl.errors import DataError

T = TypeVar("T")
_BLOCK = 1 << 20  # bytes read at a time
_TIMEOUT = 30.0  # seconds without a byte


class Track(Protocol):
    """What shows that something long goes on."""

    def __call__(self, items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
        """The items themselves, shown as progress on ``what``, out of ``total``."""
        ...


@dataclass(frozen=True)
class Published:
    """One file as its owners publish it."""

    name: str
    """Its path below the data set's root."""
    url: str
    md5: str | None = None
    """Of the file, in hexadecimal; None where the owners give none."""
    sha256: str | None = None
    """Likewise."""

    def check(self, path: Path, track: Track) -> None:
        """Compare a file with the checksums that the owners give.

        Raises:
            DataError: it is another one.
        """
        for algorithm, expected in (("md5", self.md5), ("sha256", self.sha256)):
            if expected is not None:
                _check(path, algorithm, expected, track)


def provide(root: Path, files: Sequence[Published], track: Track) -> None:
    """Make sure that these files lie in ``root``: download what is missing, check what is new.

    A download that was cut off goes on where it ended.

    Raises:
        DataError: a file cannot be had, which says where each missing one belongs; or it is not
            the owners'.
    """
    missing = [file for file in files if not (root / file.name).exists()]
    for k, file in enumerate(missing):
        try:
            _download(root / file.name, file, track)
        except OSError as error:
            if isinstance(error, HTTPError):
                error.close()
            wanted = "; ".join(f"{other.url} as {root / other.name}" for other in missing[k:])
            raise DataError(
                f"{root}: {file.name} is missing and cannot be downloaded ({error}); put there by "
                f"hand: {wanted}"
            ) from error


def check_md5(path: Path, expected: str, track: Track) -> None:
    """Read a file and compare its checksum.

    Raises:
        DataError: it is another one.
    """
    _check(path, "md5", expected, track)


def check_count(path: Path, what: str, found: int, expected: int) -> None:
    """Compare how many there are with what the owners tell.

    Raises:
        DataError: there are more or fewer.
    """
    if found != expected:
        raise DataError(f"{path}: found {found} {what}, the owners' data has {expected}")


def quiet(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """The track that shows nothing."""
    return items


def _check(path: Path, algorithm: str, expected: str, track: Track) -> None:
    """Read a file and compare its checksum by this algorithm of ``hashlib``."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(_BLOCK), b"")
        for block in track(blocks, f"checking {path.name}", -(-path.stat().st_size // _BLOCK)):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise DataError(
            f"{path}: its {algorithm} is {digest.hexdigest()}, the owners' is {expected}; it is "
            "damaged or another file: remove it and fetch it again"
        )


def _download(path: Path, file: Published, track: Track) -> None:
    """Fetch into PATH.part, which becomes PATH when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    begun = part.stat().st_size if part.exists() else 0
    request = Request(file.url, headers={"Range": f"bytes={begun}-"} if begun else {})  # noqa: S310
    with urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
        goes_on = answer.status == 206  # else the server sends the file from its start
        length = answer.headers.get("Content-Length")
        total = None if length is None else -(-int(length) // _BLOCK)
        with part.open("ab" if goes_on else "wb") as out:
            blocks = iter(lambda: answer.read(_BLOCK), b"")
            for block in track(blocks, f"fetching {file.name}", total):
                out.write(block)
    try:
        file.check(part, track)
    except DataError:
        part.unlink()
        raise
    part.replace(path)
