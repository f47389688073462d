"""DP-FedAvg: clipped movements, and Gaussian noise on their sum.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta g(y)
    finish  delta = v min(1, clip / norm(v)),  v = x - y
    update  x <- x - eta_g (sum(delta) + noise clip n) / (C N),  n standard normal [P]

C N is the cohorts' size as configured, not as drawn.  A round without clients adds its noise too.
How private that is, epsilon for a delta, is in the log and in ``hpcfl plan``.

McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language Models. ICLR
2018, algorithm 1 (DP-FedAvg, fixed denominator). arXiv:1710.06963

Departures: all clients weigh the same; one clip for the whole vector.
"""

from dataclasses import dataclass
from typing import ClassVar

from hpcfl.algorithms.base import Message, Nothing, Server, Upload
from hpcfl.algorithms.facts import Client, Cohort, Draws, Facts
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import NonNegative, Part, Positive, Vector


@dataclass(frozen=True, kw_only=True)
class DPFedAvg(FedAvg):
    """FedAvg with privacy of whole clients (McMahan et al., 2018)."""

    server_draws: ClassVar[Draws] = {"noise": "normal"}
    updates_without_clients: ClassVar[bool] = True

    clip: Positive
    """The largest norm of a client's movement; longer ones are scaled down to it."""
    noise: NonNegative
    """z, the noise's standard deviation in the sum over the clip."""
    delta: Part | None = None
    """Of the guarantee whose epsilon is reported; N^-1.1 when absent."""

    def resolve(self, facts: Facts) -> "DPFedAvg":
        if facts.weights != "uniform":
            raise ValueError("bounds what one client adds to a plain mean; set weights: uniform")
        if facts.cohort in ("importance", "power_of_choice"):
            raise ValueError(
                f"has no bound for cohorts of {facts.cohort}, in which a client may count twice or "
                "is chosen by its data; take uniform or bernoulli"
            )
        if facts.statistics == "mean":
            raise ValueError(
                "would send running statistics without noise; set model.statistics=local, or frozen"
            )
        return self

    def finish(
        self, y: Vector, local: Message, message: Message, state: Nothing, client: Client
    ) -> tuple[Upload, Nothing]:
        v = message.x - y
        return Upload(v * (self.clip / v.norm()).clamp(max=1)), state

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        noise = self.noise * self.clip * cohort.draws["noise"]
        expected = self.facts.participation * self.facts.population
        return Server(server.x - self.server_lr * (cohort.size * mean.delta + noise) / expected)
