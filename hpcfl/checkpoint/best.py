"""Keep the best evaluated model in best.safetensors, in the run directory and every checkpoint.

A checkpoint holds the best model as of its round, and a resume restores it: a better one of a later
round must not count before the resumed run finds it again.  The file holds the model, its round,
its score and a checksum of them.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from hpcfl.errors import StoreError
from hpcfl.io.atomic import STANDS, write_errors, write_file
from hpcfl.io.checked_tensors import pack, unpack
from hpcfl.types import Vector

# In order of preference: the first that a run has decides.  1: higher is better, -1: lower is.
DECIDING_SCORES = {
    "validation_accuracy": 1,
    "validation_loss": -1,
    "test_accuracy": 1,
    "test_loss": -1,
}


class BestModel(NamedTuple):
    """A model, its round, and the name and value of its score."""

    x: Vector
    round: int
    name: str
    score: float

    @property
    def rank(self) -> float:
        """The score as a number that is higher for a better model."""
        return DECIDING_SCORES[self.name] * self.score

    def pack(self) -> bytes:
        """The content of the file: safetensors of x [P], the round, and the score by its name."""
        score = torch.tensor(self.score, dtype=torch.float64)
        return pack({"x": self.x, "round": torch.tensor(self.round), self.name: score})

    @classmethod
    def unpack(cls, content: bytes, path: Path) -> "BestModel":
        """Read what ``pack`` returned.

        Raises:
            StoreError: it is damaged; ``path`` is for the message.
        """
        try:
            tensors = unpack(content)
            (name,) = set(tensors) & set(DECIDING_SCORES)
            return cls(tensors["x"], int(tensors["round"]), name, float(tensors[name]))
        except (LookupError, ValueError, RuntimeError, OverflowError) as e:
            raise StoreError(f"{path}: is not a best model: {e!r}; resume to restore it") from e


class Best:
    """Keeps the best model of a run; used on rank 0 alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rank = -math.inf
        self.content: bytes | None = None
        """The content of the file, or None before the first evaluation."""

    def offer(self, round: int, scores: Mapping[str, float], x: Vector) -> None:
        """Keep ``x``, the model after ``round`` rounds, if it is better than all before.

        Raises:
            DiskError: the disk is full or fails.
        """
        name = next((name for name in DECIDING_SCORES if name in scores), None)
        if name is None:  # nothing was tested: all labels are padding
            return
        loss = scores.get(f"{name.partition('_')[0]}_loss", 0.0)
        if not math.isfinite(loss):  # its accuracy is that of outputs that are not numbers
            return
        found = BestModel(x.detach().cpu(), round, name, scores[name])
        if found.rank > self._rank:  # the first of equals is kept
            self._rank, self.content = found.rank, found.pack()
            write_file(self._path, self.content, advice=STANDS)

    def restore(self, content: bytes | None) -> None:
        """Continue with the best model of a checkpoint; None if it has none.

        Raises:
            StoreError: it is damaged, or cannot be written.
        """
        self.content, self._rank = content, -math.inf
        if content is None:
            with write_errors(self._path):
                self._path.unlink(missing_ok=True)
            return
        self._rank = BestModel.unpack(content, self._path).rank
        write_file(self._path, content, advice=STANDS)
