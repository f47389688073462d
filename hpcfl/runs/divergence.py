"""Decide whether a run diverged though all its numbers stayed finite.

The engine ends a run at the first number that is not finite, with exit code 3.  A learning rate
that is too large, but not by so much, leaves a model whose training loss is far above the loss of
guessing: ln(classes) for a classification, and the loss of the output 0 for a regression.  The loss
is compared with that of guessing and not with the first round's: the first mean training loss may
be far lower than all later ones (clients with a single class learn it within a few steps), or as
high as they are (the run diverged at once).

Not reported as divergence, each for a reason:

- a learning rate that is too small: the loss stays near that of guessing, or falls;
- a single bad round, or heterogeneous clients: the median of the last rounds must be FACTOR times
  the guess, or UNLEARNED times if the test accuracy is no better than chance either (a network
  whose units are all dead stays at 3 to 10 times);
- large features or initial weights: the loss begins far above the guess, so it must also be above
  its first value;
- a large learning rate of a linear classifier, which scales outputs and loss while the classes are
  still separated: with a test accuracy far above chance, the loss must be ABSURD times the guess;
- losses that begin at 0 or below: if the loss of guessing is unknown (functions of the parameters
  alone, and runs of earlier versions), the loss must be ABSURD times that of the first round or of
  the initial model, whichever is larger, as one of them may be near 0.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

RECENT = 5  # rounds
UNLEARNED = 3.0
FACTOR = 10.0
ABSURD = 1000.0
LEARNED = 0.25  # of the distance from chance to 1: no guess has so high an accuracy
_INITIAL = ("train_objective", "test_loss")  # keys of the log, in an evaluation of round 0
# The mean training loss of the first round is of models that its local steps have changed already.
# If the initial model was not evaluated, a tenth of that mean is taken for its loss.
_IMPROVED = 10.0


class Divergence(NamedTuple):
    """A training loss that is too high, and the loss that it is compared with."""

    loss: float
    """The median of the last rounds."""
    rounds: int
    """The number of these rounds."""
    measure: float
    """The loss that it is compared with."""
    guess: bool
    """Whether ``measure`` is the loss of guessing; else it is that of the beginning."""

    def __str__(self) -> str:
        measure = "guessing has" if self.guess else "it began at"
        return (
            f"train loss {self.loss:.3g} (median of the last {self.rounds} rounds), "
            f"{measure} {self.measure:.3g}"
        )


def find_divergence(log: Sequence[Mapping[str, Any]], guess: float | None) -> Divergence | None:
    """Find out from its log whether a run diverged; None: it did not, or the log cannot show it.

    Args:
        log: an entry for each round, as in log.jsonl, where null stands for a number not finite.
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
        threshold = _threshold(log, guess)
        if loss > threshold * guess and loss > start:
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


def _threshold(log: Sequence[Mapping[str, Any]], guess: float) -> float:
    """How many times the loss of guessing a loss must be, given the newest accuracies."""
    keys = ("test_accuracy", "personal_accuracy")  # x of some methods is not trained
    known = ([line[k] for k in keys if line.get(k) is not None] for line in reversed(log))
    newest = next(filter(None, known), None)
    if newest is None:
        return FACTOR
    chance = math.exp(-guess)  # guess: ln(classes)
    learned = max(map(float, newest)) > chance + LEARNED * (1 - chance)
    return ABSURD if learned else UNLEARNED
