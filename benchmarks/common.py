"""What the benchmarks share: taking turns, a result as a table, JSON and a plot, the command line.

Several sides run alternately, a turn each, so that noise of the machine affects all of them alike.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from textwrap import fill
from typing import Any, NamedTuple, TypeVar

import torch

from hpcfl.errors import HpcflError, RemoteRankError
from hpcfl.io.cgroups import usable_cores
from hpcfl.io.progress import track
from hpcfl.runs.outputs import check_output, write_output
from hpcfl.start.environment import versions
from hpcfl.tools.report.plots.figure import COLOURS, check_plot, new_figure, save

WIDTH = 100  # columns of a table
_ENDINGS = (".json",)

Side = TypeVar("Side")


def column(name: str, width: int) -> str:
    """A name as the first column of a table; a name that is too long gets a line of its own."""
    return f"{name:{width}}" if len(name) <= width else f"{name}\n{'':{width}}"


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile; of one value, this value twice."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


class Measurement(NamedTuple):
    """The values of one quantity, measured once in every turn.

    Measurements of one subject come from the same turns, so that ``over`` may pair their values.
    """

    subject: str
    """What was measured: the name of a job, or a size."""
    side: str
    """The implementation that was measured."""
    unit: str
    values: Sequence[float]
    """One for each turn."""

    @property
    def median(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile; with one turn, its value twice."""
        return quartiles(self.values)

    def over(self, other: "Measurement") -> float:
        """The median over the turns of this value divided by the other's of the same turn.

        Unlike a ratio of medians, this cancels noise that slows the machine for a whole turn.
        """
        return median(a / b for a, b in zip(self.values, other.values, strict=True))

    def tree(self) -> dict[str, Any]:
        """All fields and their statistics, for JSON."""
        return {**self._asdict(), "median": self.median, "quartiles": self.quartiles}


@dataclass(frozen=True)
class Result:
    """The result of one benchmark."""

    command: str
    """Its name, such as "round"."""
    table: str
    figures: Sequence[Measurement]
    about: dict[str, Any] = field(default_factory=dict)
    """Settings, and values derived from the figures."""
    device: torch.device | None = None
    """The CPU when None."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why subjects could not be measured, or not wholly."""

    def check(self) -> None:
        """Tell that subjects failed.

        Raises:
            HpcflError: some did; the table says why.
        """
        if self.failed:
            raise HpcflError(f"{self.command}: failed: {'; '.join(self.failed)}; see above why")

    def machine(self) -> dict[str, Any]:
        """The machine, the versions and the date."""
        found = {
            "cores": len(usable_cores()),
            "threads": torch.get_num_threads(),
            **versions(self.device or torch.device("cpu")),
        }
        return {"date": datetime.now(UTC).isoformat(timespec="seconds"), **found}

    def __str__(self) -> str:
        m = self.machine()
        gpu = f", {m['gpu']}" if "gpu" in m else ""
        where = (
            f"{m['processor']} ({m['simd']}), {m['cores']} cores{gpu}; {m['threads']} thread(s); "
            f"Python {m['python']}, torch {m['torch']}, numpy {m['numpy']}, "
            f"hpcfl {m['hpcfl']} {(m['git'] or '')[:12]}; {m['date'][:10]}"
        )
        return f"{self.table}\n\n{fill(where, WIDTH)}"

    def write(self, path: Path) -> None:
        """Write all of it as JSON; missing folders are created.

        Raises:
            JobError: the file cannot be written.
            DiskError: the disk is full or fails.
        """
        tree = {
            "command": self.command,
            "machine": self.machine(),
            "about": self.about,
            "figures": [figure.tree() for figure in self.figures],
        }
        content = json.dumps(tree, indent=1) + "\n"
        write_output(path, content.encode(), _ENDINGS, make_folder=True)

    def plot(self, path: Path) -> None:
        """Plot a panel for each subject: a point for each turn, the median and the quartiles.

        Raises:
            JobError: the file cannot be written, or its name does not end in .png, .pdf or .svg.
        """
        panels: dict[tuple[str, str], list[Measurement]] = {}
        for found in self.figures:
            panels.setdefault((found.subject, found.unit), []).append(found)
        rows = sum(map(len, panels.values()))
        drawn, axes = new_figure(7.0, 0.8 * len(panels) + 0.35 * rows, len(panels))
        for panel, ((subject, unit), figures) in zip(axes, panels.items(), strict=True):
            for y, found in enumerate(figures):
                colour = COLOURS[y % len(COLOURS)]
                panel.plot(found.values, [y] * len(found.values), ".", color=colour, alpha=0.4)
                panel.plot(found.quartiles, [y, y], "-", color=colour, linewidth=2)
                panel.plot([found.median], [y], "|", color=colour, markersize=14)
            panel.set_yticks(range(len(figures)), [found.side for found in figures])
            panel.set_ylim(len(figures) - 0.5, -0.5)
            panel.set_xlim(0, None)
            panel.set_xlabel(unit)
            panel.set_title(subject, fontsize="medium", loc="left")
        save(drawn, [path])


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


def parser(description: str, *, job: bool = False) -> argparse.ArgumentParser:
    """The parser of a benchmark's command line.

    Args:
        description: the first lines of its help.
        job: whether it takes a job and overrides.
    """
    made = argparse.ArgumentParser(description=description)
    if job:
        made.add_argument("job", type=Path, nargs="?", help="job (default: two built-in ones)")
        made.add_argument("overrides", nargs="*", default=[], metavar="key.path=value")
    made.add_argument("--json", type=Path, metavar="F", help="write every turn's figures")
    made.add_argument("--plot", type=Path, metavar="F", help=".png, .pdf or .svg to draw")
    return made


def main(
    options: argparse.Namespace, measure: Callable[[argparse.Namespace], Result | None]
) -> int:
    """Measure, print and write the result; errors become a line.

    Args:
        options: of the command line.
        measure: returns None on all ranks but the first.

    Returns:
        The exit code.
    """
    try:
        # Check the files now, not after minutes of measuring.
        if options.json:
            check_output(options.json, _ENDINGS, make_folder=True)
        if options.plot:
            check_plot(options.plot)
        result = measure(options)
        if result is None:
            return 0
        print(result)
        if options.json:
            result.write(options.json)
        if options.plot:
            result.plot(options.plot)
        result.check()
    except RemoteRankError as e:  # another rank prints it
        return e.exit_code
    except HpcflError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return e.exit_code
    return 0
