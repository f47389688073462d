"""Time the parts of a round, and the load of each rank.

Every instant belongs to exactly one part.  Time is counted in whole nanoseconds, so the parts of a
line of the log add up to its ``wall_s`` exactly, as the decimal numbers that stand there.
"""

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.io import checksum
from hpcfl.io.memory import allocated_memory, resident_memory
from hpcfl.types import Record

PARTS = ("sample", "read", "compute", "reduce", "wait", "update", "write", "evaluate")
"""What the wall time of a round is split into, see "The log" in the README."""
# Behind these a rank's load is counted anew: ranks go on together, or a round begins.
_ANEW = ("reduce", "evaluate", "write")
_MEMORY = ("memory_bytes", "device_bytes")
_NS = 1_000_000_000


def measured(key: str) -> bool:
    """Whether a number of the log was measured, or sums up such: another run finds another one."""
    return key.endswith("_s") or key in (*_MEMORY, "imbalance", checksum.KEY)


class RoundTimer:
    """Times the parts of one rank's rounds; a ``mark`` costs about a microsecond.

    Args:
        rank: whose it is.
        ranks: how many there are.
        device: is waited for at every ``mark``: a GPU may not have done yet what it was given.
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
        self._parts: dict[str, int] = {}  # ns
        self._busy: list[float] = []  # ns, of every rank
        self._memory: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        """Forget everything: the first part begins."""
        self._at = self._loaded = self._now()
        self._reset()

    def mark(self, part: str) -> None:
        """Count the time since the last ``mark`` as this ``part``; another part begins."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        at = self._now()
        self._parts[part] += at - self._at
        self._at = at
        if part in _ANEW:
            self._loaded = at

    def move(self, seconds: float, source: str, target: str) -> None:
        """So much of the one part, at most all of it, belongs to the other."""
        self._move(round(seconds * _NS), source, target)

    def local_metrics(self) -> list[float]:
        """The values of this rank whose maxima over ranks ``record_wait`` takes.

        Bytes in memory and on the device, then a place for each rank: this one's work in ns since
        the round began, or since a reduction in it, and the others' 0.
        """
        own = [float(resident_memory()), float(allocated_memory(self._device))]
        own += [0.0] * self._ranks
        own[len(_MEMORY) + self._rank] = float(self._now() - self._loaded)
        return own

    def record_wait(self, maxima: NDArray[np.float64]) -> None:
        """Record a reduction that just ended, and how long this rank waited in it.

        A reduction begins when the slowest rank is there: this one waited for as long as that one
        worked longer.

        Args:
            maxima: over the ranks, of what ``local_metrics`` gave before the reduction.
        """
        values = maxima.tolist()
        memory, busy = values[: len(_MEMORY)], values[len(_MEMORY) :]
        before = self._parts["reduce"]
        self.mark("reduce")
        waited = min(int(max(busy) - busy[self._rank]), self._parts["reduce"] - before)
        self._move(waited, "reduce", "wait")
        self._busy = [one + more for one, more in zip(self._busy, busy, strict=True)]
        self._memory = {key: int(count) for key, count in zip(_MEMORY, memory, strict=True)}

    def write_to(self, record: Record) -> list[float]:
        """Add to a line of the log what the time since the last one went into.

        Returns:
            The seconds that every rank was busy before it met the others, if there are several and
            they met; the imbalance is the longest of these over their mean.
        """
        wall = sum(self._parts.values()) / _NS
        busy = self._busy if self._ranks > 1 and any(self._busy) else []
        record["wall_s"] = wall
        record |= {f"{part}_s": spent / _NS for part, spent in self._parts.items()}
        record |= {key: count for key, count in self._memory.items() if count}
        if busy:
            record["imbalance"] = round(max(busy) * len(busy) / sum(busy), 4)
        for key in ("clients", "examples"):
            if record.get(key):
                record[f"{key}_per_s"] = round(record[key] / wall, 3)
        self._reset()
        return [round(spent / _NS, 6) for spent in busy]

    def _move(self, ns: int, source: str, target: str) -> None:
        moved = min(ns, self._parts[source])
        self._parts[source] -= moved
        self._parts[target] += moved

    def _reset(self) -> None:
        self._parts = dict.fromkeys(PARTS, 0)
        self._busy = [0.0] * self._ranks
        self._memory = {}
