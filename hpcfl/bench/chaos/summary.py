"""Count attempts and how they ended, and print the counts as tables."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.box import ASCII2
from rich.table import Table

from hpcfl.bench.chaos.attempt_outcome import Ending
from hpcfl.errors import HpcflError
from hpcfl.io.table import render_tables

WIDTH = 110  # columns
PHASES = ("import", "resume", "checkpoint", "pruning", "round")


@dataclass
class Summary:
    """The counts of all attempts so far."""

    notes: list[str]
    """Lines about kinds of kills that are impossible on this machine."""
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counted by the name of the kill and the phase of the attempt."""
    ends: Counter[str] = field(default_factory=Counter)
    resumes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Counted by the numbers of ranks before and after."""
    stores: Counter[str] = field(default_factory=Counter)
    """Counted by the name of the store, of attempts that resumed."""
    rounds: int = 0
    """Completed in all attempts."""
    runs: int = 0
    """Finished and compared."""
    wrong: list[str] = field(default_factory=list)
    """A line for each failure."""

    def count(self, ending: Ending) -> None:
        """Count an attempt."""
        self.ends[ending.kind] += 1
        self.rounds += ending.seen.rounds
        if ending.kind in ("killed", "stopped"):
            self.kills[ending.name, ending.phase] += 1

    def __str__(self) -> str:
        tables = render_tables(self._by_kind(), self._by_ranks(), width=WIDTH)
        return "\n".join([tables, *self._lines()])

    def check(self) -> None:
        """Fail if anything was wrong.

        Raises:
            HpcflError: something was.
        """
        if self.wrong:
            raise HpcflError(f"{len(self.wrong)} wrong, see above; the directories are kept")

    def _by_kind(self) -> Table:
        table = _table("signal", "times", *PHASES)
        for name in sorted({name for name, _ in self.kills}):
            _add(table, name, [self.kills[name, phase] for phase in PHASES])
        table.add_section()
        _add(
            table,
            "all",
            [sum(self.kills[key] for key in self.kills if key[1] == p) for p in PHASES],
        )
        return table

    def _by_ranks(self) -> Table:
        sizes = sorted({size for pair in self.resumes for size in pair})
        table = _table("resumed after an attempt on", "times", *(f"on {_ranks(n)}" for n in sizes))
        for before in sizes:
            _add(table, _ranks(before), [self.resumes[before, now] for now in sizes])
        return table

    def _lines(self) -> Iterable[str]:
        ends = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ends.items()))
        yield f"attempts       {self.ends.total()}: {ends}"
        stores = ", ".join(f"{count} {name}" for name, count in sorted(self.stores.items()))
        yield f"stores         {stores or 'none'} (of attempts that resumed)"
        yield f"rounds         {self.rounds} done"
        yield f"runs           {self.runs} compared with uninterrupted ones"
        yield f"disagreements  {len(self.wrong)}"
        for text in (*self.notes, *self.wrong):
            yield f"  {text}"


def _table(first: str, *columns: str) -> Table:
    table = Table(box=ASCII2)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _add(table: Table, name: str, counts: list[int]) -> None:
    table.add_row(name, str(sum(counts)), *(str(count or "-") for count in counts))


def _ranks(count: int) -> str:
    return f"{count} rank" + "s" * (count != 1)
