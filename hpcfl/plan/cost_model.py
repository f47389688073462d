"""The costs that a round's time is predicted from; see ``hpcfl.plan.time``."""

from typing import Literal, NamedTuple


class CostModel(NamedTuple):
    """Seconds and speeds on one rank while all of them work."""

    origin: str
    """The measurement and its date, or the reason why they are assumed."""
    device: Literal["cpu", "cuda"]
    """The device of a rank."""
    step_s: float
    """A local step: one batch, and the algorithm's part of it."""
    visit_s: float
    """Seconds of one client in one round besides its local steps: making its batches, and state
    I/O if ``read`` and ``write`` are absent."""
    round_s: float
    """Seconds of a round that do not depend on its clients: drawing the cohort, the server's
    step."""
    convert_s: float
    """The exact mean of a client's upload, per number."""
    restore_s: float
    """The exact mean of a round, per number, whatever the clients."""
    test_s: float
    """An example of an evaluation."""
    latency_s: float | None = None
    """A message between two ranks; None: measured on one rank."""
    bandwidth: float | None = None
    """Bytes/s that a rank sends in an all-reduce while it receives as many; None as above."""
    read: float | None = None
    """Bytes/s of client states; None: part of ``visit_s``."""
    write: float | None = None
