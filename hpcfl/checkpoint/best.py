"""Keep the best evaluated model, which every checkpoint holds in its file best.safetensors.

It is the best up to the checkpoint's round, and a resume continues with it: a better one of a later
round must not count before the resumed run finds it again.  The file holds the model, its round,
its score and a checksum of them.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from hpcfl.errors import StoreError
from hpcfl.io.checked_tensors import pack, unpack
from hpcfl.runs.run_score import deciding_scores
from hpcfl.runs.score_names import score_named
from hpcfl.types import Vector


class BestModel(NamedTuple):
    """A model, its round, and the name and value of its score."""

    x: Vector
    round: int
    name: str
    score: float

    @property
    def rank(self) -> float:
        """The score as a number that is higher for a better model."""
        return self.score if score_named(self.name).better == "higher" else -self.score

    def pack(self) -> list[memoryview]:
        """The content of the file, in parts: x [P], the round, and the score by its name."""
        score = torch.tensor(self.score, dtype=torch.float64)
        return pack({"x": self.x, "round": torch.tensor(self.round), self.name: score})

    @classmethod
    def unpack(cls, content: bytes, path: Path) -> "BestModel":
        """Read the content of the file.

        Raises:
            StoreError: it is damaged; ``path`` is for the message.
        """
        try:
            tensors = unpack(content)
            (name,) = set(tensors) & {
                name for personal in (False, True) for name in deciding_scores(personal=personal)
            }
            return cls(tensors["x"], int(tensors["round"]), name, float(tensors[name]))
        except (LookupError, ValueError, RuntimeError, OverflowError) as e:
            raise StoreError(
                f"{path}: is not a best model: {e!r}; resume from an older checkpoint"
            ) from e


class Best:
    """Keeps the best model of a run; used on rank 0 alone."""

    def __init__(self) -> None:
        self.model: BestModel | None = None
        """None before the first evaluation."""

    def offer(
        self, round: int, scores: Mapping[str, float], x: Vector, *, personal: bool = False
    ) -> None:
        """Keep ``x``, the model after ``round`` rounds, if it is better than all before.

        On a CPU itself and no copy, as nothing changes a server's model in place.

        ``personal``: whether the run counts by the scores of the clients' own models.
        """
        decide = deciding_scores(personal=personal)
        name = next((name for name in decide if name in scores), None)
        if name is None:  # nothing was tested: all labels are padding
            return
        loss = scores.get(name.replace("accuracy", "loss"), 0.0)
        if not math.isfinite(loss):  # its accuracy is that of outputs that are not numbers
            return
        found = BestModel(x.detach().cpu(), round, name, scores[name])
        # The first of equals is kept; one that another score chose, before a resume, is not.
        best = self.model
        if best is None or found.rank > best.rank or name != best.name:
            self.model = found

    def restore(self, content: bytes | None, path: Path) -> None:
        """Continue with the best model of a checkpoint.

        Args:
            content: of its file; None if it has none.
            path: of the file, for the message.

        Raises:
            StoreError: it is damaged.
        """
        self.model = None if content is None else BestModel.unpack(content, path)
