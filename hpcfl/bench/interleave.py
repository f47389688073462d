"""Measure several things in turns, so that noise of the machine falls on all of them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from hpcfl.io.progress import track

Side = TypeVar("Side")


def take_turns(
    sides: Mapping[Side, Callable[[], float]],
    turns: int,
    what: str,
    *,
    warm: int = 1,
    speaks: bool = True,
) -> dict[Side, list[float]]:
    """Play every side once a turn; standard error hears between two of them how far they are.

    Args:
        sides: by name, what plays and tells its seconds.
        turns: that count.
        what: is measured, for people.
        warm: turns before, which do not count.
        speaks: whether this process tells; of several ranks the first.

    Returns:
        By name, a figure a turn.
    """
    times: dict[Side, list[float]] = {name: [] for name in sides}
    plays = [(name, play) for _ in range(warm + turns) for name, play in sides.items()]
    # No thread draws beside what is measured.
    told = track(plays, what, len(plays), thread=False) if speaks else plays
    for name, play in told:
        times[name].append(play())
    return {name: seconds[warm:] for name, seconds in times.items()}
