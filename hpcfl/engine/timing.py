"""Measure the time of each phase of a round, and the load of each rank.

Every instant belongs to exactly one phase.  Times are whole nanoseconds, so that the phases in a
line of the log add up to its ``wall_s`` exactly, as decimal numbers.
"""

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.clients.participation import Wait
from hpcfl.io.memory import resident_memory
from hpcfl.runs.log_keys import MEMORY, PHASES, SIMULATED
from hpcfl.types import Record

# After these the load of a rank is counted from zero: the ranks have just synchronised, or a round
# begins.
_SYNCHRONISED = ("reduce", "evaluate", "write")
_NS = 1_000_000_000


class SimulatedClock:
    """Adds up the simulated time of the rounds; a resume sets it to what the log has."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Since the beginning of round 1, in whole microseconds."""

    def pass_round(self, wait: Wait) -> Record:
        """Let a round pass; its numbers for the log."""
        self.seconds = round(self.seconds + wait.seconds, 6)
        return {"asked": wait.asked, SIMULATED: self.seconds}


class RoundTimer:
    """Times the phases of one rank's rounds; a ``mark`` takes about a microsecond.

    Args:
        rank: its number.
        ranks: their number.
        device: synchronised at every ``mark``, as kernels of a GPU end after their launch.
        now: a clock in nanoseconds.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        device: torch.device,
        now: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._rank, self._ranks, self._device, self._now = rank, ranks, device, now
        self._phases: dict[str, int] = {}  # ns
        self._busy: list[float] = []  # ns, of every rank
        self._memory: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        """Discard everything measured; the first phase begins."""
        self._marked = self._synchronised = self._now()
        self._reset()

    def mark(self, phase: str) -> None:
        """Add the time since the last ``mark`` to ``phase``; the next phase begins."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        at = self._now()
        self._phases[phase] += at - self._marked
        self._marked = at
        if phase in _SYNCHRONISED:
            self._synchronised = at

    def move(self, seconds: float, source: str, target: str) -> None:
        """Move time from one phase to another, at most all of it."""
        self._move(round(seconds * _NS), source, target)

    def local_metrics(self) -> list[float]:
        """The values whose maxima over ranks ``record_wait`` takes.

        Bytes in memory and on the device, then one entry a rank: this rank's work in ns since the
        ranks last synchronised, and 0 for the others, so that the maximum holds the work of all.
        """
        own = [float(resident_memory()), float(_allocated_memory(self._device))]
        own += [0.0] * self._ranks
        own[len(MEMORY) + self._rank] = float(self._now() - self._synchronised)
        return own

    def record_wait(self, maxima: NDArray[np.float64]) -> None:
        """Record the end of a reduction, and the time that this rank waited in it.

        A reduction begins when the slowest rank reaches it, so this rank waited for the difference
        between that rank's work and its own.

        Args:
            maxima: over the ranks, of their ``local_metrics`` before the reduction.
        """
        values = maxima.tolist()
        memory, busy = values[: len(MEMORY)], values[len(MEMORY) :]
        before = self._phases["reduce"]
        self.mark("reduce")
        waited = min(int(max(busy) - busy[self._rank]), self._phases["reduce"] - before)
        self._move(waited, "reduce", "wait")
        self._busy = [one + more for one, more in zip(self._busy, busy, strict=True)]
        self._memory = {key: int(count) for key, count in zip(MEMORY, memory, strict=True)}

    def write_to(self, record: Record) -> list[float]:
        """Add the phases since the last call to a line of the log, and begin anew.

        Returns:
            The seconds that every rank worked between synchronisations, if there are several ranks
            and they synchronised; the imbalance is the largest of these over their mean.
        """
        wall = sum(self._phases.values()) / _NS
        busy = self._busy if self._ranks > 1 and any(self._busy) else []
        record["wall_s"] = wall
        record |= {f"{phase}_s": ns / _NS for phase, ns in self._phases.items()}
        record |= {key: count for key, count in self._memory.items() if count}
        if busy:
            record["imbalance"] = round(max(busy) * len(busy) / sum(busy), 4)
        for key in ("clients", "examples"):
            if record.get(key):
                record[f"{key}_per_s"] = round(record[key] / wall, 3)
        self._reset()
        return [round(ns / _NS, 6) for ns in busy]

    def _move(self, ns: int, source: str, target: str) -> None:
        moved = min(ns, self._phases[source])
        self._phases[source] -= moved
        self._phases[target] += moved

    def _reset(self) -> None:
        self._phases = dict.fromkeys(PHASES, 0)
        self._busy = [0.0] * self._ranks
        self._memory = {}


def _allocated_memory(device: torch.device) -> int:
    """The most bytes that tensors have occupied on a GPU so far; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
