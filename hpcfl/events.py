"""RUN/events: the numbers of log.jsonl once more, for TensorBoard, where that is installed."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from hpcfl.errors import JobError
from hpcfl.records import SCORES
from hpcfl.store.durable import storing
from hpcfl.types import Record, Section

FLUSH_S = 10  # between two times that a live TensorBoard sees more


@dataclass(frozen=True, kw_only=True)
class Log(Section):
    """What is written beside log.jsonl."""

    tensorboard: bool | Literal["auto"] = "auto"
    """Whether events are written for TensorBoard; auto: where the package is installed."""

    @property
    def events(self) -> bool:
        """Whether they are."""
        return _installed() if self.tensorboard == "auto" else self.tensorboard

    def check(self) -> None:
        """Raise JobError where events are wanted and cannot be written."""
        if self.tensorboard is True and not _installed():
            raise JobError(
                "log.tensorboard: found true, but no package tensorboard; say `pip install "
                "tensorboard`, or auto or false"
            )


def _installed() -> bool:
    return find_spec("tensorboard") is not None


class Events:
    """The events of one start of a run; a thread writes them, on rank 0 alone.

    Args:
        folder: is made where it is not there.
        done: rounds that are kept from earlier starts: TensorBoard forgets what lies beyond.

    Raises:
        StoreError: the disk is full or fails.
    """

    def __init__(self, folder: Path, done: int) -> None:
        # Here, not above: half a second that only a run that writes events pays, before its rounds.
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._folder, self._summary = folder, Summary
        first = done + 1 if done else 0
        with storing(folder):
            self._writer: Any = SummaryWriter(str(folder), purge_step=first, flush_secs=FLUSH_S)

    def round(self, record: Record) -> None:
        """Take down a line of the log.

        Raises:
            StoreError: the disk is full or fails.
        """
        # All numbers at once: a tenth of the time of one by one.
        values = [
            self._summary.Value(tag=_tag(key), simple_value=value)
            for key, value in record.items()
            if key != "round"
        ]
        with storing(self._folder):
            self._writer.file_writer.add_summary(self._summary(value=values), record["round"])

    def flush(self) -> None:
        """Hand everything to the system.

        Raises:
            StoreError: the disk is full or fails.
        """
        with storing(self._folder):
            self._writer.flush()

    def close(self) -> None:
        """End the thread.

        Raises:
            StoreError: the disk is full or fails.
        """
        with storing(self._folder):
            self._writer.close()


def _tag(key: str) -> str:
    """The name of a curve; TensorBoard puts those of one folder side by side."""
    if key in SCORES or key == "train_loss":
        return f"score/{key}"
    if key.endswith("_s") and not key.endswith("_per_s"):
        return f"time/{key}"
    return f"round/{key}"
