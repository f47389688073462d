"""Arrange runs as the cells of a table: algorithms by set-ups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcfl.job.settings import SEED, Settings, distinguishing_settings
from hpcfl.report.groups import seed_groups
from hpcfl.report.published import set_up
from hpcfl.report.table import Value
from hpcfl.run_dir.record import RunRecord


class SetUp(NamedTuple):
    """The data, model and cohorts that a column stands for."""

    data: str
    model: str
    split: str
    clients: str
    cohort: str


class Method(NamedTuple):
    """The algorithm that a row stands for."""

    algorithm: str
    settings: str
    """Settings that distinguish its jobs from others of the same algorithm and set-up."""


@dataclass(frozen=True)
class Grid:
    """Runs as the cells of a table."""

    runs: Sequence[RunRecord]
    rows: Sequence[Method]
    columns: Sequence[SetUp]
    cells: Mapping[tuple[Method, SetUp], Sequence[int]]
    """Indices of runs that differ in the seed alone."""

    def titles(self) -> list[str]:
        """Titles of the columns: data and split, and more where these are not distinct."""
        shown = ["data", "split"]
        for name in ("clients", "cohort", "model"):
            told = {tuple(getattr(column, key) for key in shown) for column in self.columns}
            more = {tuple(getattr(c, key) for key in (*shown, name)) for c in self.columns}
            if len(more) > len(told):
                shown.append(name)
        return [
            "\n".join(
                value + " clients" * (name == "clients")
                for name in shown
                for value in [getattr(column, name)]
                if (name, value) not in (("clients", "None"), ("split", column.data))
            )
            for column in self.columns
        ]

    def job(self, row: Method, column: SetUp) -> Settings:
        """The job of a cell; of one without runs, the column's with the row's algorithm."""
        if (row, column) in self.cells:
            return self.runs[self.cells[row, column][0]].settings
        rest = self._some(column=column)
        job = {key: value for key, value in rest.items() if not key.startswith("algorithm.")}
        method = self._some(row=row)
        return job | {key: value for key, value in method.items() if key.startswith("algorithm.")}

    def _some(self, row: Method | None = None, column: SetUp | None = None) -> Settings:
        """The job of the first run in a row or a column."""
        index = next(
            members[0] for place, members in self.cells.items() if row in place or column in place
        )
        return self.runs[index].settings

    def progress(self, row: Method, column: SetUp) -> dict[str, Value]:
        """For programs: how many runs a cell has, and how far they are."""
        members = [self.runs[index] for index in self.cells.get((row, column), ())]
        return {
            "seeds": len(members),
            "seeds_finished": sum(run.finished for run in members),
            "seeds_diverged": sum(run.diverged for run in members),
            "rounds": members[0].rounds if members else None,
            "rounds_done": min((run.done for run in members), default=None),
        }


def read_grid(runs: Sequence[RunRecord]) -> Grid:
    """Arrange runs; several jobs of one algorithm and set-up get a row each."""
    jobs = [run.settings for run in runs]
    sharing: dict[tuple[str, SetUp], list[list[int]]] = {}
    for group in seed_groups(runs):
        own = set_up(jobs[group[0]])
        column = SetUp(*(own[name] for name in SetUp._fields))
        sharing.setdefault((own["algorithm"], column), []).append(group)
    cells: dict[tuple[Method, SetUp], Sequence[int]] = {}
    for (algorithm, column), groups in sharing.items():
        for settings, group in zip(
            distinguishing_settings([jobs[g[0]] for g in groups], but=[SEED]), groups, strict=True
        ):
            cells[Method(algorithm, settings), column] = group
    rows = dict.fromkeys(row for row, _ in cells)
    columns = dict.fromkeys(column for _, column in cells)
    known = list(dict.fromkeys(row.algorithm for row in rows))
    ordered = sorted(rows, key=lambda row: known.index(row.algorithm))
    return Grid(runs, ordered, list(columns), cells)
