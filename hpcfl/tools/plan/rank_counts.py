"""Compare numbers of ranks: the time, the hours of GPUs or cores, and the memory of each."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.box import ASCII2
from rich.filesize import decimal
from rich.table import Table

from hpcfl.io.words import counted
from hpcfl.tools.plan.host_memory import HostMemory
from hpcfl.tools.plan.resources import Plan
from hpcfl.tools.plan.slurm_request import SlurmRequest
from hpcfl.tools.plan.time import Prediction

WORTH = 1.5
"""The best number of ranks is the fastest one that takes at most so many times the fewest hours of
GPUs or cores."""


class RankCount(NamedTuple):
    """What a job needs on a number of ranks."""

    plan: Plan
    request: SlurmRequest
    memory: HostMemory
    prediction: Prediction | None
    """None where nothing was measured."""

    @property
    def hours(self) -> float | None:
        """Of the whole job; None where nothing was measured."""
        return None if self.prediction is None else self.prediction.hours

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self.plan.shares)

    @property
    def spent(self) -> float | None:
        """GPU-hours; core-hours on CPUs."""
        each = 1 if self.request.gpus else self.request.cores
        return None if self.hours is None else self.hours * self.ranks * each

    @property
    def node_hours(self) -> float | None:
        """Hours of whole nodes."""
        return None if self.hours is None else self.hours * self.request.nodes


def table(counts: Sequence[RankCount], too_many: Sequence[int] = ()) -> Table:
    """A row for each number of ranks; those that the clients are too few for have no figures."""
    unit = _unit(counts)
    made = Table(box=ASCII2)
    for title in (
        *("ranks", "nodes", "memory\nof a rank", "to ask for\na node", "stores\nof all"),
        *("hours", unit, "node-hours"),
    ):
        made.add_column(title, justify="right", no_wrap=True)
    for each in counts:
        found = each.hours, each.spent, each.node_hours
        made.add_row(
            *(f"{each.ranks}", f"{each.request.nodes}"),
            *(decimal(each.memory.rank), f"{each.request.gigabytes} GB"),
            decimal(each.plan.disk_budget.stores),
            *("-" if hours is None else f"{hours:.3g}" for hours in found),
        )
    for ranks in too_many:
        made.add_row(f"{ranks}", *["-"] * (len(made.columns) - 1))
    return made


def best(counts: Sequence[RankCount], *, by_nodes: bool = False) -> RankCount:
    """The fastest of those that are worth their hours; the first where nothing was measured.

    Args:
        counts: of which it is one.
        by_nodes: the hours are those of whole nodes, not of GPUs or cores.
    """
    measured = [(each.hours, each.node_hours if by_nodes else each.spent, each) for each in counts]
    known = [(h, spent, each) for h, spent, each in measured if h is not None and spent is not None]
    if not known:
        return counts[0]
    fewest = min(spent for _, spent, _ in known)
    worth = [(hours, each) for hours, spent, each in known if spent <= WORTH * fewest]
    return min(worth, key=lambda pair: pair[0])[1]


def advice(counts: Sequence[RankCount]) -> list[str]:
    """Which number is the best, and a warning about each that takes far more hours than it."""
    chosen, unit = best(counts), _unit(counts)
    if chosen.hours is None or chosen.spent is None:
        return []
    by_nodes = best(counts, by_nodes=True)
    other = f"; where nodes are given whole, by node-hours: {_ranks(by_nodes)}"
    lines = [
        f"best: {_ranks(chosen)}, the fastest at no more than {WORTH:g} times the fewest {unit}"
        + other * (by_nodes is not chosen)
    ]
    for each in counts:
        if each.hours is None or each.spent is None or each.spent <= WORTH * chosen.spent:
            continue
        lines.append(
            f"WARNING: {_ranks(each)} take {each.spent / chosen.spent:.3g} times the {unit} of "
            f"{_ranks(chosen)}, for {each.hours / chosen.hours:.2g} of the time"
        )
    return lines


def _unit(counts: Sequence[RankCount]) -> str:
    return "GPU-hours" if counts[0].request.gpus else "core-hours"


def _ranks(count: RankCount) -> str:
    return counted(count.ranks, "rank")
