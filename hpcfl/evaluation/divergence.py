"""Decide whether a run diverged though all its numbers stayed finite.

A run that meets a number that is not finite ends by itself, with exit code 3.  Rates that are not
quite so wrong leave a model that is worse than none: its training loss is far above the loss of
guessing, ln(classes) for classes, and that of the output 0 for targets.  The guess is the measure,
not the first round, whose mean training loss may be far lower than that of any later round
(clients of one class learn it within a few steps) or as high as they are (it diverged at once).

What must not be taken for divergence, and why it is not:

- a small rate: the loss stays where it was, near the guess, or falls from where it was;
- an unlucky round, or clients that differ: the median of the last rounds counts, and it must be
  FACTOR times the guess, or UNLEARNED times where the test accuracy is no better than chance either
  (a network whose units are all dead stays at 3 to 10 times);
- features or weights that are large at first: the loss begins far above the guess, so it must also
  be above where it began;
- a large rate of a linear classifier, which scales the outputs and the loss, while the classes are
  told apart: a test accuracy far above chance says so, unless the loss is beyond all reason
  (ABSURD);
- losses that begin at 0, or below: where nobody knows a guess (functions of the parameters alone,
  and runs of earlier versions), growth is measured from the largest of the first losses, and must
  be ABSURD, as a first round may end near 0.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from hpcfl.data.base import Dataset

RECENT = 5  # rounds
UNLEARNED = 3.0
FACTOR = 10.0
ABSURD = 1000.0
LEARNED = 0.25  # of the way from chance to 1: an accuracy that no guess has
_INITIAL = ("train_objective", "test_loss")  # an evaluation of round 0 has them
# The first round's mean is of models that its own local steps have changed; where it is all that
# is known of the beginning, a run must have left it well behind to have improved.
_IMPROVED = 10.0


class Divergence(NamedTuple):
    """How far a training loss is from what it should be."""

    loss: float
    """The median of the last rounds."""
    rounds: int
    """How many these are."""
    measure: float
    """What it is compared with."""
    guess: bool
    """Whether that is the loss of guessing, or else of the first round."""

    def __str__(self) -> str:
        measure = "guessing has" if self.guess else "it began at"
        return (
            f"train loss {self.loss:.3g} (median of the last {self.rounds} rounds), "
            f"{measure} {self.measure:.3g}"
        )


def guess_loss(dataset: Dataset) -> float | None:
    """The mean training loss of a model that knows nothing; None where there is no such model."""
    if dataset.loss == "quadratic":
        return None
    if dataset.classes is not None:
        return math.log(dataset.classes)
    labels = dataset.train.labels.double()
    loss = float(labels.square().sum() / (2 * len(labels)))
    return loss if 0 < loss < math.inf else None


def find_divergence(log: Sequence[Mapping[str, Any]], guess: float | None) -> Divergence | None:
    """Whether a run diverged as far as it has come; None: it did not, or nobody can tell.

    Args:
        log: one object a round, as in log.jsonl, where null stands for what is not finite.
        guess: the loss of guessing, if it is known.
    """
    losses = [
        math.inf if line["train_loss"] is None else float(line["train_loss"])
        for line in log
        if "train_loss" in line
    ]
    if not losses:
        return None
    recent = losses[-RECENT:]
    loss = median(recent)
    initial = _initial(log)
    if guess:
        start = losses[0] / _IMPROVED if initial is None else initial
        far = _far(log, guess)
        if loss > far * guess and loss > start:
            return Divergence(loss, len(recent), guess, guess=True)
        return None
    scale = max(abs(losses[0]), abs(initial or 0.0))
    if 0 < scale < math.inf and loss > ABSURD * scale:
        return Divergence(loss, len(recent), scale, guess=False)
    return None


def _initial(log: Sequence[Mapping[str, Any]]) -> float | None:
    """The loss of the initial model, if it was evaluated."""
    first = log[0] if log and log[0].get("round") == 0 else {}
    return next((float(first[key]) for key in _INITIAL if first.get(key) is not None), None)


def _far(log: Sequence[Mapping[str, Any]], guess: float) -> float:
    """How many times the guess a loss must be, by what the newest test accuracy says."""
    key = "test_accuracy"
    newest = next((line[key] for line in reversed(log) if line.get(key) is not None), None)
    if newest is None:
        return FACTOR
    chance = math.exp(-guess)  # guess: ln(classes)
    learned = float(newest) > chance + LEARNED * (1 - chance)
    return ABSURD if learned else UNLEARNED
