"""The host memory that a rank needs, for Slurm and for the user: measured, or a lower bound."""

from typing import NamedTuple

from rich.filesize import decimal

from hpcfl.io.words import counted
from hpcfl.tools.plan.measure import Measurement
from hpcfl.tools.plan.resources import Plan

PROGRAM = 250_000_000  # bytes of the interpreter and its libraries, without CUDA's
GPU_BYTES = 3_000_000_000  # that a rank on a GPU takes besides: CUDA's libraries and context
MEASURED, COMPUTED = 1.25, 2.0  # bytes to ask for, over those that were measured or computed


class HostMemory(NamedTuple):
    """Bytes of host memory."""

    rank: int
    """Of the rank that needs most, its examples included."""
    shared: int
    """Examples, which the ranks of a host hold once."""
    room: float
    """How much more to ask for."""
    text: str
    """What they are, for the user."""

    def to_ask(self, ranks: int) -> float:
        """Bytes to ask for, for a host with so many ranks."""
        return self.room * (ranks * self.rank - (ranks - 1) * self.shared)


def computed_memory(plan: Plan, *, gpus: bool) -> HostMemory:
    """The sum of what a rank holds for certain, and of its program."""
    least = plan.least_memory
    program = PROGRAM + gpus * GPU_BYTES
    parts = {"the program": program, **least._asdict()}
    said = ", ".join(f"{name} {decimal(size)}" for name, size in parts.items() if size)
    total = program + least.total
    text = f"{decimal(total)} a rank or more: {said}; batches and gradients come on top"
    return HostMemory(total, least.data, COMPUTED, text)


def measured_memory(plan: Plan, measured: Measurement, there: Plan) -> HostMemory:
    """The peak of the processes that were measured, and what a rank of ``plan`` holds more.

    Args:
        plan: of the ranks that are asked for.
        measured: its memory is known.
        there: the plan of the ranks that were measured.
    """
    # Their rounds were few: they had not yet the states that a run has at its end.
    least, then = plan.least_memory, there.least_memory
    total = measured.memory + least.total - (then.total - then.states)
    ranks = counted(measured.ranks, "rank")
    text = f"{decimal(total)} a rank: {decimal(measured.memory)} at the peak of {ranks}, measured"
    if plan.shares != there.shares or least.states:
        text += ", corrected for the clients of a rank here and for the states of all rounds"
    if measured.gpu_memory:
        text += f"; {decimal(measured.gpu_memory)} of tensors on the GPU"
    return HostMemory(total, least.data, MEASURED, text)
