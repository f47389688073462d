"""The costs that a round's time is predicted from, measured (``hpcfl bench pieces``) or assumed."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import JobError
from hpcfl.job.schema import section
from hpcfl.job.yaml_file import JobFile
from hpcfl.types import NonNegative, Positive, Section


@dataclass(frozen=True, kw_only=True)
class CostModel(Section):
    """Seconds and speeds on one rank while all of them work; see ``hpcfl.plan.time``."""

    origin: str
    """Where they are from: what was measured and when, or that they are assumed, and why."""
    of: str | None = None
    """What work they are of, see ``hpcfl.plan.time.kind``; None: of whatever they are used for."""
    step_s: Positive
    """A local step: one batch, and the algorithm's part of it."""
    visit_s: NonNegative
    """A client's visit beyond its steps: streams, and its state where no speeds are given."""
    round_s: NonNegative
    """A round beyond its visits and sums: drawing the cohort, the server's step."""
    convert_s: NonNegative
    """The exact mean of a client's upload, per number."""
    restore_s: NonNegative
    """The exact mean of a round, per number, whatever the clients."""
    test_s: NonNegative
    """An example of an evaluation."""
    latency_s: NonNegative | None = None
    """A message between two ranks; None: measured on one rank."""
    bandwidth: Positive | None = None
    """Bytes/s that a rank sends in an all-reduce while it receives as many; None as above."""
    read: Positive | None = None
    """Bytes/s of client states; None: part of ``visit_s``."""
    write: Positive | None = None

    def tree(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def read_cost_model(path: Path) -> CostModel:
    """The pieces that a file of `hpcfl bench pieces --json` holds, or one written by hand.

    Raises:
        JobError: there are none in it.
    """
    try:
        tree = json.loads(path.read_text())
    except OSError as e:
        raise JobError(f"{path}: cannot be read: {e.strerror}; name another") from e
    except (ValueError, RecursionError) as e:
        raise JobError(f"{path}: is no JSON: {e}; say hpcfl bench pieces JOB --json F") from e
    found = tree.get("about", tree) if isinstance(tree, dict) else None
    if not isinstance(found, dict) or "pieces" not in found:
        raise JobError(f'{path}: no "pieces" in it; say hpcfl bench pieces JOB --json F')
    pieces: CostModel = section(CostModel, JobFile(str(path), found), "pieces")
    return pieces
