"""FedRep: FedPer whose clients move their own parameters first, and then the shared ones.

    server  x                                 client i  w_i = x_0's personal parameters
    send    x's shared parameters
    first   y = x, with w_i as its personal parameters
    step    y <- y - eta g(y), of the personal parameters alone for the first K_i - ceil(body K_i)
            steps, then of the shared ones alone
    finish  w_i <- y's personal parameters;  delta = x - y of the shared ones
    update  x <- x - eta_g mean(delta), of the shared ones

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized Federated
Learning. ICML 2021, algorithm 1. arXiv:2102.07078

Departures: weight decay moves what moves alone.  ``body`` is a part of the local steps: with 10
local epochs its default is one epoch of the shared parameters.  eta_g is ours (1 there).
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, ones_like, zeros_like

from hpcfl.algorithms.base import Message
from hpcfl.algorithms.facts import Client, Facts
from hpcfl.algorithms.fedper import FedPer, State
from hpcfl.types import Share, Vector


class Local(NamedTuple):
    own: Vector  # 1 at the personal parameters, 0 at the shared ones


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """FedRep (Collins et al., 2021)."""

    body: Share = 0.1
    """The part of the local steps that moves the shared parameters, after the others."""

    def resolve(self, facts: Facts) -> "FedPer":
        facts.require_plain_sgd("a velocity would move the parameters that stand still")
        return super().resolve(facts)

    def begin(self, message: Message, state: State, client: Client) -> Local:
        return Local(self.personal_model(zeros_like(message.x), State(ones_like(state.own))))

    def step_scale(self, y: Vector, local: Local, client: Client) -> Tensor:
        # Less the rounding of the product: a body of 0.7 is 7 of 10 steps.
        shared_steps = (self.body * client.steps - 1e-9).ceil()
        early = (client.step < client.steps - shared_steps).to(y.dtype)
        return early * local.own + (1 - early) * (1 - local.own)
