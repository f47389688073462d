"""The costs that a round's time is predicted from, measured (``hpcfl bench costs``) or assumed."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hpcfl.errors import JobError
from hpcfl.io.regular import read_text
from hpcfl.job.schema import section
from hpcfl.job.yaml_file import JobFile
from hpcfl.types import NonNegative, Positive, Section

OLD_KEY = "pieces"  # the name of `costs` in files of version 0.1


@dataclass(frozen=True, kw_only=True)
class CostModel(Section):
    """Seconds and speeds on one rank while all of them work; see ``hpcfl.plan.time``."""

    origin: str
    """Their origin: the measurement and its date, or the reason why they are assumed."""
    of: str | None = None
    """The kind of work they belong to, see ``hpcfl.plan.time.kind``; None: any."""
    device: Literal["cpu", "cuda"] | None = None
    """The device of a rank; None: not recorded, as in files before version 0.2."""
    step_s: Positive
    """A local step: one batch, and the algorithm's part of it."""
    visit_s: NonNegative
    """Seconds of one client in one round besides its local steps: making its batches, and state
    I/O if ``read`` and ``write`` are absent."""
    round_s: NonNegative
    """Seconds of a round that do not depend on its clients: drawing the cohort, the server's
    step."""
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
    """Read the costs from a file of `hpcfl bench costs --json`, or one written by hand.

    Raises:
        JobError: there are none in it.
    """
    try:
        tree = json.loads(read_text(path))
    except OSError as e:
        raise JobError(f"{path}: cannot be read: {e.strerror}; name another") from e
    except (ValueError, RecursionError) as e:
        raise JobError(f"{path}: is no JSON: {e}; run hpcfl bench costs JOB --json F") from e
    found = tree.get("about", tree) if isinstance(tree, dict) else None
    if isinstance(found, dict) and OLD_KEY in found:
        found = with_new_key(found)
        say_renamed(str(path))
    if not isinstance(found, dict) or "costs" not in found:
        raise JobError(f'{path}: no "costs" in it; run hpcfl bench costs JOB --json F')
    costs: CostModel = section(CostModel, JobFile(str(path), found), "costs")
    return costs


def with_new_key(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the key of version 0.1, if it is there."""
    return {"costs" if key == OLD_KEY else key: value for key, value in tree.items()}


def say_renamed(where: str) -> None:
    """Tell the user that a file has the old key."""
    sys.stderr.write(f"{where}: {OLD_KEY} is called costs now\n")
