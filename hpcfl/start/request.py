"""What a start was asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcfl.engine.callbacks import Callback
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.layout import RunDir
from hpcfl.start.objects import KeptFiles
from hpcfl.start.resume_request import ResumeRequest


@dataclass(frozen=True)
class StartRequest:
    """What a start was asked for; the same on every rank."""

    loaded: LoadedJob
    """The checked job."""
    folder: RunDir
    """The run directory."""
    resume: ResumeRequest | None = None
    """Which checkpoint to resume from, where the user asked for one."""
    continued: bool = False
    """Resume from the folder's newest checkpoint, where there is one."""
    kept_files: KeptFiles | None = None
    """Files that the job names in the folder, to be written there first."""
    callbacks: Sequence[Callback] = ()
    """Objects beside those that the job names."""
    resumed: bool = False
    """Whether it begins at a checkpoint; ``agree`` finds out."""

    @property
    def begun_run(self) -> RunDir:
        """The folder whose run this start continues; it may still be empty.

        A branch is a run of its own; a copy without other settings continues its source.
        """
        if self.resume is None or self.resume.parent is not None:
            return self.folder
        return self.resume.source
