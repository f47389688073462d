"""Evaluate models on the clients' own data."""

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

Found = Mapping[int, Mapping[str, float]]  # client -> sums over its examples


@dataclass(frozen=True)
class Clients:
    """The clients of one rank, as an evaluation meets them."""

    population: ClientPool
    mine: Sequence[int]
    """Those whose states this rank keeps."""
    weights: NDArray[np.float64]
    """[N], of every client."""
    model: Callable[[int], Vector | None]
    """A client's own last local model, on the device; None while it has none."""

    def shared(
        self, meter: Meter, x: Vector, comm: Comm, *, objective: bool, accuracy: bool
    ) -> dict[str, float]:
        """Collective: the scores of the global model ``x`` on the clients' data."""
        population = self.population
        scores: dict[str, float] = {}
        training: Found = {}
        if objective or (accuracy and not population.holds_out):
            training = {i: meter.whole(x, population.training(i)) for i in self.mine}
        if objective:
            terms = [
                float(self.weights[i]) * (sums["loss"] / sums["examples"])
                for i, sums in training.items()
            ]
            (total,) = exact_sums(comm, [terms], x.device)
            scores["objective"] = total / float(self.weights.sum())
        if accuracy:
            tested = training
            if population.holds_out:
                tested = {i: meter.whole(x, population.testing(i)) for i in self.mine}
            scores |= _spread("client_accuracy", self._accuracies(tested, comm, x.device))
        return scores

    def own(self, meter: Meter, comm: Comm, device: torch.device) -> dict[str, float]:
        """Collective: the scores of each client's own last model on its own data."""
        found = {}
        for client in self.mine:
            model = self.model(client)
            if model is not None:
                found[client] = meter.whole(model, self.population.testing(client))
        accuracies = self._accuracies(found, comm, device)
        return {**_spread("own_accuracy", accuracies), "own_clients": len(accuracies)}

    def _accuracies(self, found: Found, comm: Comm, device: torch.device) -> list[float]:
        """Collective: the accuracies of all clients that were tested on anything, ascending."""
        table = torch.zeros(2, len(self.population), dtype=torch.float64)
        for client, sums in found.items():
            if sums and sums["scored"]:
                table[0, client] = sums["correct"] / sums["scored"]
                table[1, client] = 1
        table = table.to(device)
        comm.allreduce_sum(table)  # exact: every entry is one rank's, and 0 on all others
        accuracies, tested = table.cpu()
        return sorted(accuracies[tested > 0].tolist())


def _spread(name: str, ascending: Sequence[float]) -> dict[str, float]:
    """The mean, and the mean of the worst tenth; nothing of nobody."""
    if not ascending:
        return {}
    worst = ascending[: max(1, len(ascending) // 10)]
    return {
        f"{name}_mean": math.fsum(ascending) / len(ascending),
        f"{name}_worst_decile": math.fsum(worst) / len(worst),
    }
