"""Time several functions in turns, so that noise of the machine affects all of them alike."""

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
    show_progress: bool = True,
) -> dict[Side, list[float]]:
    """Call every function once in each turn, and collect the seconds that it returns.

    Args:
        sides: functions by name; each returns the seconds of what it measures.
        turns: how many turns are measured.
        what: the title of the progress line.
        warm: turns before these, which are not measured.
        show_progress: whether this process shows progress; of several ranks the first does.

    Returns:
        By name, a figure a turn.
    """
    times: dict[Side, list[float]] = {name: [] for name in sides}
    plays = [(name, play) for _ in range(warm + turns) for name, play in sides.items()]
    # Without a thread for the progress line: it would disturb the measurement.
    tracked = track(plays, what, len(plays), thread=False) if show_progress else plays
    for name, play in tracked:
        times[name].append(play())
    return {name: seconds[warm:] for name, seconds in times.items()}
