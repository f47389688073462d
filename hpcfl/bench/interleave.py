"""Time several functions alternately, so that noise of the machine affects all of them alike."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from hpcfl.io.progress import track

Side = TypeVar("Side")


def take_turns(
    sides: Mapping[Side, Callable[[], float]],
    turns: int,
    title: str,
    *,
    warmup: int = 1,
    show_progress: bool = True,
) -> dict[Side, list[float]]:
    """Call all functions once in each turn, and collect the seconds that they return.

    The functions are not timed here, as they may exclude their own preparation.

    Args:
        sides: functions by name; each returns the seconds of the work that it measured.
        turns: the number of measured turns.
        title: of the progress line.
        warmup: the number of turns before these, whose seconds are dropped.
        show_progress: False on all ranks but the first.

    Returns:
        For each name, the seconds of every measured turn.
    """
    times: dict[Side, list[float]] = {name: [] for name in sides}
    calls = [(name, side) for _ in range(warmup + turns) for name, side in sides.items()]
    # A thread that draws the progress line would disturb the measurement.
    tracked = track(calls, title, len(calls), thread=False) if show_progress else calls
    for name, side in tracked:
        times[name].append(side())
    return {name: seconds[warmup:] for name, seconds in times.items()}
