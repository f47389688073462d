"""The end of a run before its last round."""

from typing import NamedTuple

from hpcfl.job.schema import LoadedJob
from hpcfl.runs.job_file.resume_rules import ending_fingerprint
from hpcfl.runs.job_file.settings import flatten


class EarlyEnd(NamedTuple):
    """The end of a run before its last round, by its scores or a callback."""

    round: int
    """Rounds completed."""
    reason: str

    def __str__(self) -> str:
        return f"finished early at round {self.round}: {self.reason}"


def ending_settings(loaded: LoadedJob) -> str:
    """A hash of ``stop`` and ``callbacks``, which a run that ended early keeps.

    If it has changed at a resume, the run continues.
    """
    return ending_fingerprint(flatten(loaded.tree))
