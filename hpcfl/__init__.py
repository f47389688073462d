"""hpcfl: federated learning at scale on HPC machines.

From Python, ``hpcfl.run("jobs/quickstart.yaml", ["rounds=20"])`` does what ``hpcfl run`` does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcfl.runner.start import Result

__version__ = "0.2.0"
__all__ = ["__version__", "resume", "run"]


def run(
    job: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    continued: bool = False,
) -> "Result":
    """Run a job; under a launcher, on all ranks.

    Args:
        job: a job file, the name of a packaged job ("quickstart"), or a mapping as in a file.
        overrides: ``key.path=value`` settings over the job's.
        out: the run directory; runs/NAME when absent ("job" is a mapping's name).
        continued: resume if the directory holds a checkpoint of this job.

    Returns:
        The run directory, the final model and the log.

    Raises:
        JobError: something is wrong with the job, its files or the directory.
        DivergedError: a client's update was not finite.
        Stopped: a signal asked for a stop; a checkpoint was written.
    """
    from hpcfl.job.schema import load
    from hpcfl.runner.start import start

    return start(load(job, overrides), Path(out) if out else None, continued=continued)


def resume(
    directory: str | Path,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    round: int | None = None,
    verify: bool = True,
) -> "Result":
    """Resume a run from a checkpoint, on any number of ranks.

    Args:
        directory: the run directory.
        overrides: ``key.path=value`` settings over the job's, which change no past round.
        out: copy the run there and resume the copy; the run in ``directory`` may be alive.
        round: of the checkpoint; None: the newest.  Later checkpoints are deleted.
        verify: read all client states first; else each one when it is first used.

    Raises:
        JobError: the directory holds no run, one that is alive, or not that round, or a setting
            would change past rounds; ``out`` exists.
        StoreError: the checkpoint or a store is damaged.
        DivergedError, Stopped: as for ``run``.
    """
    from hpcfl.runner.start import resume

    copy = Path(out) if out else None
    return resume(Path(directory), overrides, out=copy, round=round, verify=verify)
