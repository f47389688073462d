"""What a run returns."""

from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from hpcfl.runs.log import LogReader
from hpcfl.runs.record import read_run
from hpcfl.start.saved_models import load_model
from hpcfl.types import Record, Vector


@dataclass(frozen=True)
class Result:
    """The model and the log of a finished run."""

    directory: Path
    """The run directory, as an absolute path."""
    rounds: int
    """Rounds completed."""
    x: Vector = field(repr=False)
    """The final model, flat, on the CPU."""

    @property
    def log(self) -> list[Record]:
        """One object a round, from log.jsonl."""
        return [dict(entry) for entry in LogReader(self.directory / "log.jsonl").read()]

    @property
    def accuracy(self) -> float | None:
        """The newest test accuracy in the log, of 0 to 1; None where none was measured.

        It is that of the clients' own models (``personal_accuracy``) where the run counts by them.
        """
        run = read_run(self.directory)
        curve = run.curve(run.score_key("accuracy"))
        return curve[-1][1] if curve else None

    def model(self) -> nn.Module:
        """The final model, see ``hpcfl.load_model``."""
        return load_model(self.directory)
