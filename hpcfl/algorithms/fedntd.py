"""FedNTD: clients keep the received model's answers on the classes other than the label.

    server  x                                 client  nothing
    send    x
    step    p = softmax of the logits of x over the classes other than the label, at temperature
            tau;  q = the same of y, on the same batch
            y <- y - eta grad (loss(y) + beta tau^2 mean KL(p || q))
    finish  delta = x - y
    update  x <- x - eta_g mean(delta)

p has no gradient.

Lee, Jeong, Shin, Bae, Yun. Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning. NeurIPS 2022. arXiv:2106.03097

Departures: the logits of x are computed in training mode, as those of y; the authors' code computes
them in evaluation mode (but for the first client).  With dropout, or batch normalisation whose
statistics are not frozen, this is another method.
"""

from dataclasses import dataclass

from torch import Tensor, inf

from hpcfl.algorithms.base import Message
from hpcfl.algorithms.facts import Client, Facts, Forward, Grad
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import NonNegative, Positive, Vector


@dataclass(frozen=True, kw_only=True)
class FedNTD(FedAvg):
    """FedNTD (Lee et al., 2022)."""

    beta: NonNegative = 1.0
    """Weight of the distillation."""
    tau: Positive = 1.0
    """Temperature."""

    def resolve(self, facts: Facts) -> "FedNTD":
        require_classes(facts)
        return self

    def direction(
        self, point: Vector, local: Message, grad: Grad, client: Client
    ) -> tuple[Vector, Message]:
        teacher = grad.forward(local.x).outputs

        def terms(forward: Forward) -> Tensor:
            kept = self._not_true(teacher, forward), self._not_true(forward.outputs, forward)
            return forward.losses + self.beta * self.tau**2 * divergence(*kept)

        return grad(point, terms), local

    def _not_true(self, outputs: Tensor, forward: Forward) -> Tensor:
        """Log-probabilities of the classes other than the label; -inf for the label."""
        others = outputs.masked_fill(forward.label_mask, -inf) / self.tau
        return others - others.logsumexp(-1, keepdim=True)


def require_classes(facts: Facts) -> None:
    """Refuse data without classes.

    Raises:
        ValueError: there are none.
    """
    if facts.layout is not None and facts.classes is None:
        raise ValueError("sees the logits of classes, and this data has none")


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of log-probabilities [..., n]; classes of probability 0 in both add nothing."""
    absent = p == -inf
    difference = p.masked_fill(absent, 0.0) - q.masked_fill(absent, 0.0)
    return (p.exp() * difference).sum(-1)
