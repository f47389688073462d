"""hpcfl: federated learning at scale on HPC machines.

From Python, ``hpcfl.run("jobs/quickstart.yaml", ["rounds=20"])`` does what ``hpcfl run`` does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcfl.session import Result

__version__ = "0.1.0"
__all__ = ["__version__", "resume", "run"]


def run(
    job: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
) -> "Result":
    """Run a job; under a launcher, on all ranks.

    Args:
        job: a job file, or the same as a mapping.
        overrides: ``key.path=value`` settings over the job's.
        out: the run directory; runs/NAME when absent ("job" is a mapping's name).

    Returns:
        The run directory, the final model and the log.

    Raises:
        JobError: something is wrong with the job, its files or the directory.
        DivergedError: a client's update was not finite.
        Stopped: a signal asked for a stop; a checkpoint was written.
    """
    from hpcfl.job import load
    from hpcfl.session import start

    return start(load(job, overrides), Path(out) if out else None)


def resume(directory: str | Path) -> "Result":
    """Take up a run again from its last checkpoint, on any number of ranks.

    Raises:
        JobError: the directory holds no run, or one that is alive.
        StoreError: the checkpoint or a store is damaged.
        DivergedError, Stopped: as for ``run``.
    """
    from hpcfl.session import resume

    return resume(Path(directory))
