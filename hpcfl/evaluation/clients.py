"""Evaluate models on the clients' data."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.clients.client_pool import ClientPool
from hpcfl.comm.base import Comm
from hpcfl.comm.exact_sum import exact_sums
from hpcfl.evaluation.client_rows import ClientRows
from hpcfl.evaluation.measure import Meter, rounded_sum
from hpcfl.evaluation.user_metrics import Score, agree
from hpcfl.types import Vector

_MODELS = {"client": "global", "local_model": "local", "personal": "personal"}
"""By the prefixes of their scores, the models in clients.csv."""
ClientSums = Mapping[int, Mapping[str, float]]  # client -> sums over its examples


@dataclass(frozen=True)
class Clients:
    """The clients of one rank, and their last local models, for evaluations."""

    pool: ClientPool
    owned: Sequence[int]
    """The clients whose states this rank keeps; it evaluates these."""
    weights: NDArray[np.float64]
    """[N], of every client in the mean."""
    local_model: Callable[[int, Vector], Vector | None]
    """(client, the evaluated model x) -> its last local model, on the device; or None."""
    personal_models: Callable[[Sequence[int], Vector, int], Iterable[Vector]]
    """(clients, the evaluated model x, rounds completed) -> their own models, on the device."""

    @property
    def _tested(self) -> list[int]:
        """Those that have examples to be scored on."""
        return [client for client in self.owned if self.pool.tests_of(client)]

    def global_scores(
        self,
        meter: Meter,
        x: Vector,
        comm: Comm,
        rows: ClientRows | None = None,
        *,
        objective: bool,
        accuracy: bool,
    ) -> dict[str, float]:
        """Collective: the scores of the global model ``x`` on the clients' data."""
        pool = self.pool
        scores: dict[str, float] = {}
        training: ClientSums = {}
        if objective or (accuracy and pool.tested_on == "train"):
            metrics = accuracy and pool.tested_on == "train"
            training = meter.of_clients(self.owned, lambda _: x, pool.training, metrics=metrics)
        if objective:
            terms = [
                float(self.weights[i]) * (sums["loss"] / max(sums["examples"], 1.0))
                for i, sums in training.items()
            ]
            (total,) = exact_sums(comm, [terms], x.device)
            scores["train_objective"] = total / float(self.weights.sum())
        if accuracy:
            tested = training
            if pool.tested_on != "train":
                tested = meter.of_clients(self._tested, lambda _: x, pool.testing)
            scores |= self._summaries("client", tested, meter, comm, x.device, rows)[0]
        return scores

    def local_model_scores(
        self, meter: Meter, x: Vector, comm: Comm, rows: ClientRows | None
    ) -> dict[str, float]:
        """Collective: the scores of each client's last local model on its own data."""
        sums = meter.of_clients(self._tested, lambda i: self.local_model(i, x), self.pool.testing)
        scores, clients = self._summaries("local_model", sums, meter, comm, x.device, rows)
        return {**scores, "local_model_clients": clients}

    def personal_scores(
        self, meter: Meter, x: Vector, round: int, comm: Comm, rows: ClientRows | None
    ) -> dict[str, float]:
        """Collective: the scores of each client's own model, beside ``x``, on its own data.

        A model is made once for both: what it is tested on, and what the client keeps for
        validation.
        """
        pool, sets = self.pool, {"personal": (self.pool.tests_of, self.pool.testing)}
        if pool.validates:
            sets["personal_validation"] = (pool.validations_of, pool.validating)
        places = {
            client: [(client, name) for name, (count, _) in sets.items() if count(client)]
            for client in self.owned
        }
        clients = [client for client, own in places.items() if own]
        made = zip(clients, self.personal_models(clients, x, round), strict=True)
        models = (model for client, model in made for _ in places[client])
        found = meter.of_clients(
            [place for own in places.values() for place in own],
            lambda _: next(models),
            lambda place: sets[place[1]][1](place[0]),
        )
        keys = ("loss", "examples", "correct", "scored")[: 4 if meter.classifies else 2]
        terms = [
            [sums[key] for (_, of), sums in found.items() if of == name]
            for name in sets
            for key in keys
        ]
        totals, scores = iter(exact_sums(comm, terms, x.device)), dict[str, float]()
        for name in sets:
            whole = dict(zip(keys, islice(totals, len(keys)), strict=True))
            if whole["examples"]:
                scores[f"{name}_loss"] = whole["loss"] / whole["examples"]
            if whole.get("scored"):
                scores[f"{name}_accuracy"] = whole["correct"] / whole["scored"]
        tested = {client: sums for (client, name), sums in found.items() if name == "personal"}
        return scores | self._summaries("personal", tested, meter, comm, x.device, rows)[0]

    def _summaries(
        self,
        prefix: str,
        sums: ClientSums,
        meter: Meter,
        comm: Comm,
        device: torch.device,
        rows: ClientRows | None,
    ) -> tuple[dict[str, float], int]:
        """Collective: the summaries of accuracies and metrics; how many clients the first has.

        The scores of each client are handed to ``rows``.
        """
        known = {client: meter.scores(own) for client, own in sums.items()}
        agree(meter.metrics, "numbers", comm)
        scores: dict[str, float] = {}
        counts = []
        if meter.classifies:
            ascending = self._gather("accuracy", known, comm, device)
            counts.append(len(ascending))
            ends = {"worst_decile": ascending, "best_decile": ascending[::-1]}
            scores |= _summary(f"{prefix}_accuracy", ascending, **ends)
        for metric in meter.metrics:
            if metric.width > 1:
                continue
            ascending = self._gather(metric.name, known, comm, device)
            counts.append(len(ascending))
            # Both ends: hpcfl does not know which is the worst.
            ends = {"lowest_decile": ascending, "highest_decile": ascending[::-1]}
            scores |= _summary(f"{prefix}_{metric.name}", ascending, **ends)
        if rows is not None:
            rows.of_clients(_MODELS[prefix], self.pool.tested_on, known, len(self.pool))
        return scores, next(iter(counts), 0)

    def _gather(
        self,
        name: str,
        known: Mapping[int, Mapping[str, Score]],
        comm: Comm,
        device: torch.device,
    ) -> list[float]:
        """Collective: the scores of all clients that have one, ascending; NaN is none."""
        table = torch.zeros(2, len(self.pool), dtype=torch.float64)
        for client, scores in known.items():
            value = scores.get(name, math.nan)
            if not isinstance(value, tuple) and not math.isnan(value):
                table[0, client], table[1, client] = value, 1
        if comm.size > 1:
            table = table.to(device)
        comm.allreduce_sum(table)  # exact: an entry is not 0 on one rank only
        found, present = table.cpu()
        return sorted(found[present > 0].tolist())


def _tenth(values: Sequence[float]) -> float:
    """The mean of the first tenth of the values, at least of one."""
    first = values[: max(1, len(values) // 10)]
    return rounded_sum(first) / len(first)


def _summary(name: str, values: Sequence[float], **ends: Sequence[float]) -> dict[str, float]:
    """The mean, the standard deviation, and by the names of ``ends`` the means of their tenths.

    Empty without clients.
    """
    if not values:
        return {}
    mean = rounded_sum(values) / len(values)
    return {
        f"{name}_mean": mean,
        f"{name}_std": math.sqrt(rounded_sum([(v - mean) ** 2 for v in values]) / len(values)),
        **{f"{name}_{end}": _tenth(ordered) for end, ordered in ends.items()},
    }
