"""Choose what methods and runs are called in tables and plots: ``--names "fedavg=FedAvg"``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from hpcfl.errors import JobError
from hpcfl.job.registry import suggestion
from hpcfl.job.settings import labels
from hpcfl.report.table import Report, Table, Value
from hpcfl.run_dir.record import RunRecord

_COLUMNS = ("algorithm", "run", "time\nby phase")  # those that name methods or runs


@dataclass(frozen=True)
class DisplayNames:
    """What methods and runs are called; those without an entry keep their names."""

    algorithms: Mapping[str, str] = field(default_factory=dict)
    """By the method's name in jobs."""
    runs: Mapping[str, str] = field(default_factory=dict)
    """By the run's name in tables, or the name of its directory."""

    @classmethod
    def parse(cls, text: str, runs: Sequence[RunRecord]) -> Self:
        """The names of an option: "NAME=TITLE,...".

        Args:
            text: of the option.  A name that methods and runs have stands for both.
            runs: all that are shown.

        Raises:
            JobError: a part is no NAME=TITLE, no method or run has the name, or two names get the
                same title.
        """
        methods = {run.algorithm for run in runs}
        paths = list(dict.fromkeys(run.path for run in runs))
        folders = [path.name for path in paths]
        known = {*labels(paths), *(name for name in folders if folders.count(name) == 1)}
        titles: dict[str, str] = {}
        for part in text.split(","):
            name, equals, title = (word.strip() for word in part.partition("="))
            if not (name and equals and title and title.isprintable()):
                raise JobError(
                    f"--names: found {part!r}, expected NAME=TITLE, separated by commas: "
                    '"fedavg=FedAvg,scaffold=SCAFFOLD"'
                )
            if name not in methods | known:
                every = [*sorted(methods), *sorted(known - methods)]
                raise JobError(
                    f"--names: found {name!r}, expected a method or run of the report: "
                    f"{', '.join(every)}{suggestion(name, every)}"
                )
            if name in titles:
                raise JobError(f"--names: {name} is named twice; name it once")
            same = next((other for other, given in titles.items() if given == title), None)
            if same is not None:
                raise JobError(
                    f"--names: {same} and {name} are both called {title!r}; choose two titles"
                )
            titles[name] = title
        return cls(
            {name: title for name, title in titles.items() if name in methods},
            {name: title for name, title in titles.items() if name in known},
        )

    def rename(self, report: Report) -> Report:
        """The report with these names in its columns of methods and of runs."""
        return report._replace(
            tables=[self.rename_table(table) for table in report.tables],
            values=[
                {
                    key: self._renamed(key, value) if key in _COLUMNS else value
                    for key, value in row.items()
                }
                for row in report.values
            ],
        )

    def rename_table(self, table: Table) -> Table:
        """The table with these names in its columns of methods and of runs."""
        rows = [
            [
                str(self._renamed(title, cell)) if title in _COLUMNS else cell
                for title, cell in zip(table.titles, row, strict=True)
            ]
            for row in table.rows
        ]
        return table._replace(rows=rows)

    def _renamed(self, column: str, value: Value) -> Value:
        names = self.algorithms if column == "algorithm" else self.runs
        return names.get(value, value) if isinstance(value, str) else value

    def curve(self, name: str, runs: Sequence[RunRecord]) -> str:
        """What a curve of a plot is called.

        Args:
            name: the method, and the settings after a comma, where these distinguish it.
            runs: the run of the curve, or those of several seeds.  The title of a run takes the
                place of the whole name, and that of a method of the method alone.
        """
        method, comma, rest = name.partition(", ")
        for label, title in self.runs.items():
            if label not in self.algorithms and not runs[1:]:
                path = str(runs[0].path.absolute())
                if f"/{path}".endswith(f"/{label}"):
                    return title
        return self.algorithms.get(method, method) + comma + rest
