"""The speeds that a plan assumes where none were measured: the one place that states them.

`hpcfl plan` without ``--costs``, docs/scale.yaml and the hours in slurm/*.sh are of these.
"""

from dataclasses import dataclass
from typing import Literal

from hpcfl.plan.cost_model import CostModel

MEAN_BYTES = 45  # that the exact mean moves, for each number of an upload
STEP_VECTORS = 10  # of the model's size that a local step reads or writes
BACKWARD = 3  # a gradient's arithmetic over that of the outputs alone


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Speeds of one rank while all of them work."""

    of: str
    """The kind of rank."""
    device: Literal["cpu", "cuda"]
    flops: float
    """Floating-point operations per second that training reaches."""
    memory: float
    """Bytes/s that it reads and writes."""
    launch_s: float
    """Seconds of a step besides its arithmetic: starting its operations."""
    visit_s: float
    """Seconds of a client's visit beyond its steps, and of a round beyond its visits."""
    latency_s: float
    """Of a message between two ranks."""
    bandwidth: float
    """Bytes/s that a rank sends in an all-reduce while it receives as many."""
    states: float
    """Bytes/s of client states, read or written."""

    @property
    def origin(self) -> str:
        """One line that says that they are assumed."""
        return (
            f"ASSUMED, {self.of}: {self.flops / 1e9:g} GFLOP/s reached, {self.memory / 1e9:g} "
            f"GB/s of memory, {1e3 * self.launch_s:g} ms a step besides; "
            f"{1e6 * self.latency_s:g} us and {self.bandwidth / 1e9:g} GB/s between ranks, "
            f"{self.states / 1e9:g} GB/s for states; hpcfl bench costs JOB --json F measures yours"
        )

    def costs(self, *, forward: float, batch: int, parameters: int) -> CostModel:
        """The costs of a job.

        Args:
            forward: floating-point operations of an example's outputs.
            batch: examples of a step; a short last batch is taken to cost as much.
            parameters: of the model.
        """
        vectors = STEP_VECTORS * 4 * parameters / self.memory
        return CostModel(
            origin=self.origin,
            device=self.device,
            step_s=self.launch_s + BACKWARD * forward * batch / self.flops + vectors,
            visit_s=self.visit_s,
            round_s=self.visit_s,
            convert_s=MEAN_BYTES / self.memory,
            restore_s=MEAN_BYTES / self.memory,
            test_s=forward / self.flops,
            latency_s=self.latency_s,
            bandwidth=self.bandwidth,
            read=self.states,
            write=self.states,
        )


GPU = Speeds(
    of="a rank on a data-centre GPU",
    device="cuda",
    flops=4e12,
    memory=1.5e12,
    launch_s=1e-3,
    visit_s=1e-3,
    latency_s=5e-6,
    bandwidth=1e10,
    states=1e9,
)
CPU = Speeds(
    of="a rank on one core",
    device="cpu",
    flops=2e10,
    memory=5e9,
    launch_s=2e-4,
    visit_s=2e-4,
    latency_s=5e-6,
    bandwidth=2e9,
    states=1e9,
)
