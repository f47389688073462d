"""Decide whether a run diverged though all its numbers stayed finite."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

RECENT = 5  # rounds: a single one may be bad
UNLEARNED = 3.0  # a network whose units are all dead stays at 3 to 10 times the loss of guessing
ABSURD = 1000.0  # a large rate scales the outputs of a linear model, which still tells the classes
LEARNED = 0.25  # of the distance from chance to 1: no guess has so high an accuracy


def find_divergence(log: Sequence[Mapping[str, Any]], guess: float | None) -> str | None:
    """Find out from its log whether a run diverged; None: it did not, or the log cannot show it.

    The training loss of the last rounds is compared with that of guessing, which is ln(classes), or
    the loss of the output 0 where there are no classes.  The first round's may be far lower than
    all later ones, as clients with a single class learn it within a few steps.  It stands for the
    loss of guessing where this is not known.  Large features make the initial model worse than a
    guess, so the loss must be above that, too.

    Args:
        log: an entry for each round, as in log.jsonl, where null stands for a number not finite.
        guess: the loss of guessing, if it is known.

    Returns:
        The loss, and what it is compared with.
    """
    losses = [line["train_loss"] for line in log if "train_loss" in line]
    if not losses:
        return None
    recent = [math.inf if loss is None else float(loss) for loss in losses[-RECENT:]]
    loss, first = median(recent), abs(losses[0] or 0.0)
    begun = log[0].get("train_objective") or log[0].get("test_loss") or 0.0  # the initial model's
    measure = max(guess or first, abs(begun) if log[0]["round"] == 0 else 0.0)
    factor = UNLEARNED if guess and not _learned(log, math.exp(-guess)) else ABSURD
    if not 0 < factor * measure < loss:
        return None
    what = "guessing has" if measure == guess else "it began at"
    return f"train loss {loss:.3g} (median of the last {len(recent)} rounds), {what} {measure:.3g}"


def _learned(log: Sequence[Mapping[str, Any]], chance: float) -> bool:
    """Whether the newest accuracy, of x or of the clients' own models, is far above chance."""
    keys = ("test_accuracy", "personal_accuracy")
    known = ([line[k] for k in keys if line.get(k) is not None] for line in reversed(log))
    newest = next(filter(None, known), [0.0])
    return max(newest) > chance + LEARNED * (1 - chance)
