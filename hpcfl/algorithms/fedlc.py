"""FedLC: clients calibrate their logits by how many examples of each class they have.

    server  x                                 client  nothing
    send    x
    step    y <- y - eta grad loss, with logit_j - tau n_j^(-1/4) in the place of logit_j;
            classes of which the client has no example are left out of the softmax
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)

n_j: the client's examples of class j.

Zhang, Li, Li, Xu, Wu, Ding, Wu. Federated Learning with Label Distribution Skew via Logits
Calibration. ICML 2022. arXiv:2209.00189

Departures: the label stays in the softmax, as in public codes: without it the loss has no lower
bound.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, inf, where

from hpcfl.algorithms.base import Message
from hpcfl.algorithms.facts import Client, Facts, Forward, Grad
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.fedntd import require_classes
from hpcfl.types import NonNegative, Vector


@dataclass(frozen=True, kw_only=True)
class FedLC(FedAvg):
    """FedLC (Zhang et al., 2022)."""

    needs_label_counts: ClassVar[bool] = True

    tau: NonNegative = 1.0
    """Weight of the calibration."""

    def resolve(self, facts: Facts) -> "FedLC":
        require_classes(facts)
        if facts.loss != "data":
            raise ValueError(f"has a loss of its own; remove loss: {facts.loss}")
        return self

    def direction(
        self, point: Vector, local: Message, grad: Grad, client: Client
    ) -> tuple[Vector, Message]:
        counts = client.label_counts
        margins = self.tau * counts.clamp(min=1) ** -0.25

        def terms(forward: Forward) -> Tensor:
            own = forward.outputs[..., : len(counts)] - margins
            own = where(counts > 0, own, -inf)
            mask = forward.label_mask[..., : len(counts)]
            return own.logsumexp(-1) - own.masked_fill(~mask, 0.0).sum(-1)

        return grad(point, terms), local
