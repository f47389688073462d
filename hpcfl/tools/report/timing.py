"""Split the wall time of a run by phase, from its log."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcfl.runs.log_keys import OF_RANKS, PHASES, SLOWEST
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report.columns import duration
from hpcfl.tools.report.groups import labels
from hpcfl.tools.report.table import Report, Table, Value

Lines = Iterable[Mapping[str, Any]]  # of a log


def seconds(lines: Lines) -> dict[str, float]:
    """The seconds of each phase, over the lines that have them; empty if none has."""
    complete = [line for line in lines if all(_number(line, f"{phase}_s") for phase in PHASES)]
    return {p: math.fsum(line[f"{p}_s"] for line in complete) for p in PHASES} if complete else {}


def shares(lines: Lines) -> dict[str, float]:
    """The share of each phase, of 1; empty if no line has it, or no time passed."""
    parts = seconds(lines)
    wall = math.fsum(parts.values())
    return {phase: spent / wall for phase, spent in parts.items()} if wall else {}


def pace(lines: Lines) -> float | None:
    """Rounds per second of wall time; None if no line has its time."""
    found = [line["wall_s"] for line in lines if _number(line, "wall_s")]
    wall = math.fsum(found)
    return len(found) / wall if wall else None


def rate(lines: Lines, key: str) -> float | None:
    """The sum of a key per second of wall time; None if no line has the key."""
    complete = [line for line in lines if _number(line, key) and _number(line, "wall_s")]
    wall = math.fsum(line["wall_s"] for line in complete)
    return math.fsum(line[key] for line in complete) / wall if wall else None


def imbalance(lines: Lines) -> float | None:
    """The slowest rank's work over the mean one's, on average; None if no line has it."""
    found = [line["imbalance"] for line in lines if _number(line, "imbalance")]
    return math.fsum(found) / len(found) if found else None


def slowest_rank(lines: Lines) -> tuple[int, float] | None:
    """The rank that most often worked longest, and in which share of the lines; None without any.

    A line has the numbers of all ranks, or of many ranks the slowest one's.
    """
    ranks: Counter[int] = Counter()
    for line in lines:
        if line.get(OF_RANKS):
            ranks[line[OF_RANKS].index(max(line[OF_RANKS]))] += 1
        elif SLOWEST in line:
            ranks[line[SLOWEST]] += 1
    if not ranks:
        return None
    ((rank, often),) = ranks.most_common(1)
    return rank, often / ranks.total()


def by_phase(runs: Sequence[RunRecord]) -> Report:
    """A table with a row for each run: the time by phase, in percent, and its speed.

    What a log does not hold is "-", and None for programs, which have seconds and shares of 1.
    """
    titles = (
        "run",
        *("wall\ntime", *(f"{phase}\n%" for phase in PHASES)),
        *("imba-\nlance", "clients\n/s", "examples\n/s"),
    )
    names = labels([run.path for run in runs])
    rows = [(name, *_cells(run.log)) for name, run in zip(names, runs, strict=True)]
    values = [{"run": name, **_values(run.log)} for name, run in zip(names, runs, strict=True)]
    return Report([Table(titles, rows)], values)


def _values(log: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    parts, found = seconds(log), shares(log)
    return {
        "phases_s": math.fsum(parts.values()) if parts else None,
        **{phase: found.get(phase) for phase in PHASES},
        "imbalance": imbalance(log),
        **{f"{key}_per_s": rate(log, key) for key in ("clients", "examples")},
    }


def _cells(log: Sequence[Mapping[str, Any]]) -> list[str]:
    parts, found = seconds(log), shares(log)
    wall = duration(math.fsum(parts.values())) if parts else "-"
    slowest, clients, examples = imbalance(log), rate(log, "clients"), rate(log, "examples")
    return [
        wall,
        *(f"{100 * found[part]:.1f}" if found else "-" for part in PHASES),
        "-" if slowest is None else f"{slowest:.2f}",
        *("-" if speed is None else f"{speed:.1f}" for speed in (clients, examples)),
    ]


def _number(line: Mapping[str, Any], key: str) -> bool:
    """Whether the line has a number under the key; logs of other versions may not."""
    return isinstance(line.get(key), int | float)
