"""Choose the clients of a round by their losses, where the cohorts are of power of choice."""

from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from hpcfl.clients.participation import Participation
from hpcfl.engine.dry_round import Traffic, nbytes
from hpcfl.engine.run import Choice, Run
from hpcfl.errors import DivergedError
from hpcfl.local.joined import at_statistics, split

_LARGEST = float(np.finfo(np.float64).max)  # stands for a loss that is not finite


class Chosen(NamedTuple):
    """The clients of a round that losses chose."""

    participation: Participation
    candidates: int
    """How many sent their loss."""
    traffic: Traffic
    """Besides what those of them that train receive and send."""


def choose(run: Run, choice: Choice, server: Any, t: int) -> Chosen:
    """Collective: who takes part in round ``t``, by the clients' losses at the server's model.

    Each rank computes the losses of the candidates that it owns, on all their training examples, in
    evaluation mode; one maximum over ranks makes them known, so that all ranks choose alike.

    Args:
        run: the objects of the run.
        choice: the rule.
        server: before the round.
        t: the round, counted from zero.

    Raises:
        DivergedError: on every rank: a loss is not finite.
    """
    candidates = choice.candidates(t)
    run.timer.mark("sample")
    point = at_statistics(server.x, split(server).statistics)
    own = np.flatnonzero(choice.owned[candidates])
    found = choice.losses(candidates[own].tolist(), point)
    losses = np.full(len(candidates), -_LARGEST)
    losses[own] = [loss if isfinite(loss) else _LARGEST for loss in found]
    losses = run.comm.allreduce_max(losses)
    run.timer.mark("evaluate")
    if losses.max(initial=0.0) == _LARGEST:
        raise DivergedError(
            f"round {t + 1}: the loss of client {candidates[losses.argmax()]} is not finite at the "
            "server's model; no client was chosen. Lower algorithm.server_lr or local.lr"
        )
    participation = choice.choose(t, candidates, losses)
    # The message to the members has the model.
    down = (len(candidates) - len(participation.members)) * nbytes(point)
    return Chosen(participation, len(candidates), Traffic(down, len(candidates) * point.itemsize))
