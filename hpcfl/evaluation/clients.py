"""Evaluate models on the clients' data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.comm.base import Comm
from hpcfl.comm.exact_sum import exact_sums
from hpcfl.evaluation.measure import Meter
from hpcfl.local.client_pool import ClientPool
from hpcfl.types import Vector

ClientSums = Mapping[int, Mapping[str, float]]  # client -> sums over its examples


@dataclass(frozen=True)
class Clients:
    """The clients of one rank, and their last local models, for evaluations."""

    pool: ClientPool
    owned: Sequence[int]
    """The clients whose states this rank keeps; it evaluates these."""
    weights: NDArray[np.float64]
    """[N], of every client in the mean."""
    local_model: Callable[[int], Vector | None]
    """Client -> its last local model, on the device; None while it has none."""

    def global_scores(
        self, meter: Meter, x: Vector, comm: Comm, *, objective: bool, accuracy: bool
    ) -> dict[str, float]:
        """Collective: the scores of the global model ``x`` on the clients' data."""
        pool = self.pool
        scores: dict[str, float] = {}
        training: ClientSums = {}
        if objective or (accuracy and not pool.holds_out):
            training = {i: meter.whole(x, pool.training(i)) for i in self.owned}
        if objective:
            terms = [
                float(self.weights[i]) * (sums["loss"] / sums["examples"])
                for i, sums in training.items()
            ]
            (total,) = exact_sums(comm, [terms], x.device)
            scores["train_objective"] = total / float(self.weights.sum())
        if accuracy:
            tested = training
            if pool.holds_out:
                tested = {i: meter.whole(x, pool.testing(i)) for i in self.owned}
            scores |= _summary("client_accuracy", self._accuracies(tested, comm, x.device))
        return scores

    def local_model_scores(
        self, meter: Meter, comm: Comm, device: torch.device
    ) -> dict[str, float]:
        """Collective: the scores of each client's last local model on its own data."""
        sums = {}
        for client in self.owned:
            model = self.local_model(client)
            if model is not None:
                sums[client] = meter.whole(model, self.pool.testing(client))
        accuracies = self._accuracies(sums, comm, device)
        return {
            **_summary("local_model_accuracy", accuracies),
            "local_model_clients": len(accuracies),
        }

    def _accuracies(self, sums: ClientSums, comm: Comm, device: torch.device) -> list[float]:
        """Collective: the accuracies of all clients with an example to score, ascending."""
        table = torch.zeros(2, len(self.pool), dtype=torch.float64)
        for client, own in sums.items():
            if own and own["scored"]:
                table[0, client] = own["correct"] / own["scored"]
                table[1, client] = 1
        table = table.to(device)
        comm.allreduce_sum(table)  # exact: an entry is not 0 on one rank only
        accuracies, tested = table.cpu()
        return sorted(accuracies[tested > 0].tolist())


def _summary(name: str, ascending: Sequence[float]) -> dict[str, float]:
    """The mean, and the mean of the worst tenth; empty without clients."""
    if not ascending:
        return {}
    worst = ascending[: max(1, len(ascending) // 10)]
    return {
        f"{name}_mean": math.fsum(ascending) / len(ascending),
        f"{name}_worst_decile": math.fsum(worst) / len(worst),
    }
