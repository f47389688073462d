"""Arrange runs as the cells of a table: algorithms by set-ups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcfl.runs.job_file.settings import SEED, Settings, distinguishing_settings
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report.groups import compared_settings, seed_groups
from hpcfl.tools.report.published import set_up
from hpcfl.tools.report.set_ups import identities, method_names, set_up_labels, settings_of_set_ups
from hpcfl.tools.report.table import Value


class SetUp(NamedTuple):
    """The data, model and cohorts that a column stands for."""

    data: str
    model: str
    split: str
    clients: str
    cohort: str
    set_up: str
    """Where the others do not tell it apart, the settings that do."""


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

    def names(self) -> list[str]:
        """Names of the rows: a method's label in the grid of a sweep, or its algorithm."""
        names = method_names(self.runs)
        found = []
        for row in self.rows:
            own = {names[i] for place, group in self.cells.items() if row in place for i in group}
            found.append(own.pop() if len(own) == 1 else row.algorithm)
        return found

    def titles(self) -> list[str]:
        """Titles of the columns: their labels in the grid of a sweep, or else data and split.

        There is more in a title where data and split are not distinct.
        """
        of_runs = set_up_labels(self.runs)
        if any(of_runs):
            found = {column: of_runs[group[0]] for (_, column), group in self.cells.items()}
            return [found[column] for column in self.columns]
        shown = ["data", "split"]
        for name in ("clients", "cohort", "model", "set_up"):
            told = {tuple(getattr(column, key) for key in shown) for column in self.columns}
            more = {tuple(getattr(c, key) for key in (*shown, name)) for c in self.columns}
            if len(more) > len(told):
                shown.append(name)
        # Data with clients of their own have no split, unless it stands above others' splits.
        splits = any(column.split != column.data for column in self.columns)
        return [
            "\n".join(
                _shown(name, value, column)
                for name in shown
                for value in [getattr(column, name)]
                if (name, value) not in (("clients", "None"), ("set_up", ""))
                and (name != "split" or splits)
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


def _shown(name: str, value: str, column: SetUp) -> str:
    """A line of a column's title."""
    if name == "split" and value.partition(", ")[0] == column.data:
        return value.replace(column.data, "own clients", 1)
    return value + " clients" * (name == "clients")


def read_grid(runs: Sequence[RunRecord]) -> Grid:
    """Arrange runs; several jobs of one algorithm and set-up get a row each."""
    jobs = list(map(compared_settings, runs))
    set_ups = _set_ups(runs)
    sharing: dict[tuple[str, SetUp], list[list[int]]] = {}
    for group in seed_groups(runs):
        sharing.setdefault((runs[group[0]].algorithm, set_ups[group[0]]), []).append(group)
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


def _set_ups(runs: Sequence[RunRecord]) -> list[SetUp]:
    """The set-up of each run, which no run of another one has."""
    own = settings_of_set_ups(runs)
    alike: dict[SetUp, dict[str, list[int]]] = {}
    for index, (run, identity) in enumerate(zip(runs, identities(runs), strict=True)):
        named = set_up(run.settings)
        words = SetUp(
            named["data"], named["model"], named["split"], named["clients"], named["cohort"], ""
        )
        alike.setdefault(words, {}).setdefault(identity, []).append(index)
    found: dict[int, SetUp] = {}
    for words, several in alike.items():
        texts = distinguishing_settings([own[members[0]] for members in several.values()])
        for members, text in zip(several.values(), texts, strict=True):
            found |= dict.fromkeys(members, words._replace(set_up=text))
    return [found[index] for index in range(len(runs))]
