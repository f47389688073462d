"""The secret of the ranks of one start, by which they tell their own texts from those of others.

Rank 0 draws it.  Where MPI starts the ranks, MPI brings it to the others.  torchrun and srun have
nothing that only the user can read, so there it goes by a file that no other user can open: in the
run directory, or where that is not there yet, in the nearest folder above it.  Rank 0 makes the
file once all ranks have come, and removes it as soon as they have read it.
"""

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcfl.errors import JobError, RankError, file_error
from hpcfl.io.regular import create_private, open_private

LAG_S = 10.0  # after which another host sees a new file, at the latest
POLL_S = 0.05
_BYTES = 32
_PLACE = re.compile(r"(\d{1,4}) ([0-9a-f]{32})")


def draw() -> bytes:
    """A new secret."""
    return secrets.token_bytes(_BYTES)


@contextmanager
def offered(secret: bytes, run: Path) -> Iterator[str]:
    """Keep the secret in a file for the block; by the text the other ranks find it (``read``).

    Args:
        secret: of this start.
        run: the run directory, which need not be there.

    Raises:
        JobError: no file can be made there.
        DiskError: the disk is full or fails.
    """
    above = [run.absolute(), *run.absolute().parents]
    levels = next(level for level, folder in enumerate(above) if folder.is_dir())
    name = secrets.token_hex(16)
    path = _path(run, levels, name)
    try:
        with create_private(path) as file:
            file.write(secret)
    except OSError as e:
        raise file_error(
            e,
            f"{path.parent}: no file can be made there ({e.strerror}), by which the ranks share a "
            "secret; choose another directory with --out, or start the ranks by mpirun",
            JobError,
        ) from e
    try:
        yield f"{levels} {name}"
    finally:
        path.unlink(missing_ok=True)


def read(place: str, run: Path) -> bytes:
    """The secret that rank 0 offers.

    Args:
        place: as ``offered`` gave it; any process may have changed it.
        run: the run directory.

    Raises:
        RankError: there is no such file, or another user may have made or read it.
    """
    found = _PLACE.fullmatch(place)
    if found is None:
        raise _not_read(f"found {place!r} as its place")
    path = _path(run, int(found[1]), found[2])
    deadline = time.monotonic() + LAG_S
    while True:
        try:
            with open_private(path) as file:
                secret = file.read(_BYTES + 1)
        except FileNotFoundError as e:
            if time.monotonic() > deadline:
                raise _not_read(f"{path} is not there") from e
            time.sleep(POLL_S)
        except OSError as e:
            raise _not_read(f"{path}: {e.strerror}") from e
        else:
            break
    if len(secret) != _BYTES:
        raise _not_read(f"{path} holds no secret")
    return secret


def _path(run: Path, levels: int, name: str) -> Path:
    above = [run.absolute(), *run.absolute().parents]
    return above[min(levels, len(above) - 1)] / f".hpcfl-{name}"


def _not_read(reason: str) -> RankError:
    return RankError(
        f"the secret of the ranks cannot be read: {reason}; start all ranks as one user, with one "
        "run directory on a file system that all hosts share and that keeps owners and modes, or "
        "by mpirun",
        prints=True,  # because rank 0 cannot
    )
