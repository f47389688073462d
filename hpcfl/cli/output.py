"""Print results for people and for scripts."""

import os
import sys
from pathlib import Path
from typing import TextIO

from hpcfl.errors import RankError, printable


def say(text: object, *, file: TextIO | None = None, end: str = "\n") -> None:
    """Print a text for people, with nothing in it that a terminal obeys."""
    print(printable(str(text)), file=file, end=end)


def say_path(path: Path) -> None:
    """Print a path that a script may read: as it is, but to a terminal."""
    print(printable(str(path)) if sys.stdout.isatty() else path)


def may_print() -> bool:
    """Whether this process is rank 0, or its rank is unknown."""
    from hpcfl.comm.launcher import detect

    try:
        return detect(os.environ).rank == 0
    except RankError:
        return True
