"""MOON: clients draw their features to the received model's, away from their own last model's.

    server  x                                 client i  z_i = nothing yet
    send    x
    step    f, f_x, f_z = the features of y, x and z_i on the batch; with s = cos / tau
            y <- y - eta grad (loss(y) + mu mean -log(e^s(f, f_x) / (e^s(f, f_x) + e^s(f, f_z))))
    finish  delta = x - y;  z_i <- y
    update  x <- x - eta_g mean(delta)

f_x and f_z have no gradient.  Before a client's first round z_i is x: the term is log 2.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021. arXiv:2103.16257

Departures: the features are the input of the model's last dense layer; the authors add a
projection of 256 features before it, which a model of one's own may have.  f_x and f_z are computed
in training mode, as f; the authors' code computes them in evaluation mode.  With dropout, or batch
normalisation whose statistics are not frozen, this is another method.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, ones_like
from torch.nn.functional import cosine_similarity, softplus

from hpcfl.algorithms.base import Message, Upload
from hpcfl.algorithms.facts import Client, Forward, Grad, RandomInit
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import NonNegative, Positive, Vector


class State(NamedTuple):
    z: Vector  # the client's last local model
    seen: Tensor  # 1 after its first round, else 0


class Local(NamedTuple):
    x: Vector
    z: Vector


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """MOON (Li et al., 2021)."""

    needs_features: ClassVar[bool] = True

    mu: NonNegative = 1.0
    """Weight of the contrast."""
    tau: Positive = 0.5
    """Temperature."""

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(x0, x0.new_zeros(()))

    def begin(self, message: Message, state: State, client: Client) -> Local:
        return Local(message.x, message.x.lerp(state.z, state.seen))

    def direction(
        self, point: Vector, local: Local, grad: Grad, client: Client
    ) -> tuple[Vector, Local]:
        received, last = grad.forward(local.x).features, grad.forward(local.z).features

        def terms(forward: Forward) -> Tensor:
            near = cosine_similarity(forward.features, received, dim=-1)
            far = cosine_similarity(forward.features, last, dim=-1)
            return forward.losses + self.mu * softplus((far - near) / self.tau)

        return grad(point, terms), local

    def finish(
        self, y: Vector, local: Local, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        return Upload(message.x - y), State(y, ones_like(state.seen))
