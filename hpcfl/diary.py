"""What a sweep wrote down of its runs: sweep.log."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcfl.errors import JobError
from hpcfl.rundir import SWEEP_LOG

_EVENT = re.compile(r"[\d-]{10} [\d:]{8} (\w+) +([^ :]+): (.*)")
_PLAN = re.compile(r"(\d+) runs to do, (\d+) finished before")


class Diary(NamedTuple):
    """What there is to do, and what failed."""

    points: int
    """How many runs the sweep plans, or the largest part of it that was played on its own."""
    failed: Mapping[str, str]
    """Why, by the names of the runs whose last event it is."""


def read_diary(root: Path) -> Diary | None:
    """The diary of the sweep in a directory; None where no sweep wrote one.

    Raises:
        JobError: it cannot be read.
    """
    path = root / SWEEP_LOG
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise JobError(f"{path}: cannot be read: {e.strerror}") from e
    points, failed = 0, dict[str, str]()
    for event, name, text in (found.groups() for found in map(_EVENT.fullmatch, lines) if found):
        failed.pop(name, None)
        if event == "failed":
            failed[name] = text
        elif event == "plan" and (plan := _PLAN.match(text)):
            points = max(points, int(plan[1]) + int(plan[2]))
    return Diary(points, failed)
