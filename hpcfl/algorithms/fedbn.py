"""FedBN: every client keeps its normalisation layers for itself; the rest is FedAvg's.

    server  x                                 client i  w_i = x_0's weights and biases of
                                                        normalisation layers, and their statistics
    send    x's other parameters
    first   y = x, with w_i
    step    y <- y - eta g(y), which moves the statistics too
    finish  w_i <- y's weights and biases, and the statistics;  delta = x - y of the others
    update  x <- x - eta_g mean(delta), of the others

The model of client i is x with w_i.  The server's normalisation layers stay those of x_0.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021, algorithm 1. arXiv:2102.07623

Departures: any normalisation layers, not those of batch normalisation alone; cohorts and weights
are the job's (all clients and uniform there), and eta_g is ours (1 there).
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Literal

from hpcfl.algorithms.facts import Facts
from hpcfl.algorithms.fedper import Personal
from hpcfl.algorithms.layout import Layout


@dataclass(frozen=True, kw_only=True)
class FedBN(Personal):
    """FedBN (Li et al., 2021)."""

    statistics: ClassVar[Literal["mean", "local"]] = "local"

    def resolve(self, facts: Facts) -> "FedBN":
        if facts.statistics == "mean":
            raise ValueError(
                "keeps each client's own running statistics; set model.statistics=local, or frozen"
            )
        if isinstance(facts.layout, Layout) and not facts.layout.normalization:
            raise ValueError(
                "keeps the weights and biases of normalisation layers, and this model trains none; "
                "set algorithm.name to fedavg or fedper"
            )
        return self

    @property
    def _own(self) -> Set[str]:
        return frozenset(self.layout.normalization)
