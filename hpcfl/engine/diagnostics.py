"""Diagnostics that papers plot besides the scores; off by default.

S is the round's cohort, x the model it starts from, x+ the model after it, y_i the last local
model of client i, g_i the gradient at x of its mean loss over all its examples (no augmentation,
dropout, weight decay or clipping), g = 1/|S| sum_S g_i.  All clients count alike, whatever the
job's weights are.

    consistency       1/|S| sum_S norm(y_i - x+)^2
    drift             1/|S| sum_S norm(y_i - x)^2
    gradient_norm2    norm(g)^2
    dissimilarity_g2  1/|S| sum_S norm(g_i - g)^2
    dissimilarity_b2  1/|S| sum_S norm(g_i)^2 / norm(g)^2

consistency: FedMIM (Liu et al., 2023, figure 2b), whose x+ is the plain mean of the y_i.  Where
the server does more than average, it also holds the distance of x+ from that mean.

drift: SCAFFOLD (Karimireddy et al., 2020, appendix) and FedCM (Xu et al., 2021, appendix B) bound
the mean of norm(y_i - x)^2 over all local steps; this is its last step.

dissimilarity: (G, B)-BGD of SCAFFOLD, 1/N sum_i norm(grad f_i)^2 <= G^2 + B^2 norm(grad f)^2.  At x
and over the cohort, dissimilarity_g2 is the least G^2 with B = 1 (Mime's G^2-BGD), and
dissimilarity_b2 the least B^2 with G = 0.  Over all clients they are the population's; over a
uniform cohort the mean of dissimilarity_g2 is N (|S| - 1) / ((N - 1) |S|) of the population's, and
the mean of gradient_norm2 is the population's plus (N - |S|) / ((N - 1) |S|) of the population's
dissimilarity_g2.  b2 is not logged where g is zero.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.linalg import vector_norm

from hpcfl.algorithms.facts import Cohort
from hpcfl.clients.task import ClientTask
from hpcfl.comm.base import Comm
from hpcfl.comm.exact_sum import exact_sums
from hpcfl.comm.reduction import Reduction
from hpcfl.engine.dry_round import FullGradient
from hpcfl.local.executor import Executor
from hpcfl.local.joined import at_statistics, split
from hpcfl.types import Count, Record, Section, Vector


@dataclass(frozen=True, kw_only=True)
class Diagnostics(Section):
    """Measurements of a round besides its training loss."""

    consistency: bool = False
    """How far the local models end from the next global one."""
    drift: bool = False
    """How far the local models end from the global one they started from."""
    dissimilarity: bool = False
    """How much the clients' full gradients differ: a pass over the cohort's data, unless the
    algorithm computes these gradients anyway."""
    every: Count = 1
    """Measure every so many rounds."""

    def due(self, round: int) -> bool:
        """Whether the round that completes ``round`` rounds is measured."""
        return round % self.every == 0


class Observer:
    """Measures the rounds of a run; the same numbers on any number of ranks."""

    def __init__(
        self, config: Diagnostics, executor: Executor, full_gradients: Reduction, comm: Comm
    ) -> None:
        self._config, self._executor, self._comm = config, executor, comm
        self._full_gradients = full_gradients

    def needs_local_models(self, round: int) -> bool:
        """Whether ``observe`` needs the last local models of ``round``, counted from zero."""
        config = self._config
        return config.due(round + 1) and (config.consistency or config.drift)

    def observe(
        self,
        cohort: Cohort,
        message: Any,
        after: Vector,
        tasks: Sequence[ClientTask],
        local_models: Sequence[Vector],
    ) -> Record:
        """Collective: the diagnostics of a round, for its line of the log.

        Args:
            cohort: the round's, not empty.
            message: that was broadcast.
            after: the next one.
            tasks: of this rank's clients, with full gradients if the algorithm uses them.
            local_models: theirs, where ``needs_local_models`` is True.

        Raises:
            ClientError: on this rank alone, from the pass over the data.
            DivergedError: on every rank: a full gradient is not finite.
        """
        config, record, x = self._config, Record(), message.x
        if not config.due(cohort.round + 1):
            return record
        terms: dict[str, list[float]] = {}
        if config.consistency:
            terms["consistency"] = _squares(model - after for model in local_models)
        if config.drift:
            terms["drift"] = _squares(model - x for model in local_models)
        if config.dissimilarity:
            point = at_statistics(x, split(message).statistics)
            gradients, mean = self._gradients(cohort, point, tasks)
            (record["gradient_norm2"],) = _squares([mean])
            terms["dissimilarity_g2"] = _squares(gradient - mean for gradient in gradients)
        if terms:
            sums = exact_sums(self._comm, list(terms.values()), x.device)
            record |= {name: total / cohort.size for name, total in zip(terms, sums, strict=True)}
        if record.get("gradient_norm2"):
            # The mean of norm(g_i)^2 is that of norm(g_i - g)^2 and norm(g)^2.
            record["dissimilarity_b2"] = 1 + record["dissimilarity_g2"] / record["gradient_norm2"]
        return record

    def _gradients(
        self, cohort: Cohort, point: Vector, tasks: Sequence[ClientTask]
    ) -> tuple[list[Vector], Vector]:
        """Collective: the full gradients of this rank's clients, and the cohort's plain mean.

        Gradients that the algorithm uses are not computed again; others do not count as traffic.
        """
        gradients = [task.client.full_grad for task in tasks]
        if any(gradient is None for gradient in gradients):
            gradients = [own for (own,) in self._executor.full_gradients((point,), tasks)]
        if cohort.grads:
            return gradients, cohort.grads[0]
        own = [FullGradient(gradient) for gradient in gradients]
        clients, ones = [task.client_id for task in tasks], [1.0] * len(tasks)
        (mean,), *_ = self._full_gradients.mean(
            own,
            clients=clients,
            weights=ones,
            total=cohort.size,
            cohort=cohort.size,
            local_values=np.zeros(0),
            round=cohort.round + 1,
        )
        return gradients, mean


def _squares(vectors: Iterable[Vector]) -> list[float]:
    """Each vector's squared norm, in float64, with one transfer from the device for all."""
    norms = [vector_norm(vector, dtype=torch.float64) for vector in vectors]
    return torch.stack(norms).square().tolist() if norms else []
