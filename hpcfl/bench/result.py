"""The result of a measurement: a table, the figures of every turn, a plot."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from textwrap import fill
from typing import Any, NamedTuple

import torch

from hpcfl.io.atomic import write_output
from hpcfl.report.plots.figure import COLOURS, new_figure, save
from hpcfl.runner.environment import versions

WIDTH = 100  # columns of a table


def column(name: str, width: int) -> str:
    """A name at the beginning of a table's line; one that is too long has a line of its own."""
    return f"{name:{width}}" if len(name) <= width else f"{name}\n{'':{width}}"


class Figure(NamedTuple):
    """One quantity, measured in every turn; figures of one subject share their turns."""

    subject: str
    """What was measured: the name of a job, or a size."""
    side: str
    """The implementation that was measured."""
    unit: str
    values: Sequence[float]
    """One a turn."""

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third; both the value where there is one turn."""
        if len(self.values) == 1:
            return self.values[0], self.values[0]
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return low, high

    def over(self, other: "Figure") -> float:
        """The median over the turns of this figure / the other's, within one turn."""
        return median(a / b for a, b in zip(self.values, other.values, strict=True))

    def tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**self._asdict(), "median": self.middle, "quartiles": self.quartiles}


@dataclass(frozen=True)
class Result:
    """The result of one ``bench`` command."""

    command: str
    """As `bench round`."""
    table: str
    figures: Sequence[Figure]
    about: dict[str, Any] = field(default_factory=dict)
    """Settings, and values derived from the figures."""
    device: torch.device | None = None
    """The CPU when None."""

    def machine(self) -> dict[str, Any]:
        """The machine, the versions and the date."""
        free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        found = {
            "cores": free,
            "threads": torch.get_num_threads(),
            **versions(self.device or torch.device("cpu")),
        }
        return {"date": datetime.now(UTC).isoformat(timespec="seconds"), **found}

    def __str__(self) -> str:
        m = self.machine()
        gpu = f", {m['gpu']}" if "gpu" in m else ""
        where = (
            f"{m['processor']}, {m['cores']} cores{gpu}; {m['threads']} thread(s); "
            f"Python {m['python']}, torch {m['torch']}, numpy {m['numpy']}, "
            f"hpcfl {m['hpcfl']} {(m['git'] or '')[:12]}; {m['date'][:10]}"
        )
        return f"{self.table}\n\n{fill(where, WIDTH)}"

    def write(self, path: Path) -> None:
        """Write everything as JSON.

        Missing folders are made.

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
        write_output(path, content.encode(), make_folder=True)

    def plot(self, path: Path) -> None:
        """Draw every figure: a point a turn, the median and the quartiles; a panel a subject.

        Raises:
            JobError: the file cannot be written, or is of another kind.
        """
        panels: dict[tuple[str, str], list[Figure]] = {}
        for found in self.figures:
            panels.setdefault((found.subject, found.unit), []).append(found)
        rows = sum(map(len, panels.values()))
        drawn, axes = new_figure(7.0, 0.8 * len(panels) + 0.35 * rows, len(panels))
        for panel, ((subject, unit), figures) in zip(axes, panels.items(), strict=True):
            for y, found in enumerate(figures):
                colour = COLOURS[y % len(COLOURS)]
                panel.plot(found.values, [y] * len(found.values), ".", color=colour, alpha=0.4)
                panel.plot(found.quartiles, [y, y], "-", color=colour, linewidth=2)
                panel.plot([found.middle], [y], "|", color=colour, markersize=14)
            panel.set_yticks(range(len(figures)), [found.side for found in figures])
            panel.set_ylim(len(figures) - 0.5, -0.5)
            panel.set_xlim(0, None)
            panel.set_xlabel(unit)
            panel.set_title(subject, fontsize="medium", loc="left")
        save(drawn, [path])
