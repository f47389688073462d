"""FedPer: every client keeps some parameters for itself; the others are FedAvg's.

    server  x                                 client i  w_i = x_0's personal parameters
    send    x's shared parameters
    first   y = x, with w_i as its personal parameters
    step    y <- y - eta g(y)
    finish  w_i <- y's personal parameters;  delta = x - y of the shared ones
    update  x <- x - eta_g mean(delta), of the shared ones

The model of client i is x with w_i.  The server's personal parameters stay those of x_0.  With
``personal: all`` clients share nothing, and each trains alone.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019.
arXiv:1912.00818

Departures: the server's learning rate eta_g is ours (1 there).
"""

from abc import abstractmethod
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from hpcfl.algorithms.base import Message, Server, Upload
from hpcfl.algorithms.facts import Client, Cohort, Facts, RandomInit
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.layout import Layout
from hpcfl.types import Vector


class State(NamedTuple):
    own: Tensor  # w_i: the personal parameters


class Personal(FedAvg):
    """FedAvg of some parameters; every client keeps the others."""

    @property
    @abstractmethod
    def _own(self) -> Set[str]:
        """The names of the personal parameters."""

    def init_client(self, x0: Vector, random_init: RandomInit) -> State:
        return State(self._take_own(x0))

    def first_point(self, message: Message, state: State, client: Client) -> Vector:
        return self.personal_model(message.x, state)

    def finish(
        self, y: Vector, local: Any, message: Message, state: State, client: Client
    ) -> tuple[Upload, State]:
        return Upload(self._take_shared(message.x - y)), State(self._take_own(y))

    def update(self, server: Server, mean: Upload, cohort: Cohort) -> Server:
        shared = self._take_shared(server.x) - self.server_lr * mean.delta
        return Server(self.layout.join(server.x, self._shared, shared))

    def personal_model(self, x: Vector, state: State) -> Vector:
        return self.layout.join(x, self._own, state.own)

    def down_bytes(self, message: Message) -> int:
        pairs = zip(self.layout.names, self.layout.sizes, strict=True)
        shared = sum(size for name, size in pairs if name in self._shared)
        return message.x.element_size() * shared  # to join meta tensors torch imports its compiler

    @property
    def _shared(self) -> Set[str]:
        """The names of the others."""
        return frozenset(self.layout.names) - self._own

    def _take_own(self, x: Vector) -> Tensor:
        return self.layout.take(x, self._own)

    def _take_shared(self, x: Vector) -> Tensor:
        return self.layout.take(x, self._shared)


@dataclass(frozen=True, kw_only=True)
class FedPer(Personal):
    """FedPer (Arivazhagan et al., 2019)."""

    personal: Literal["last", "all"] | tuple[str, ...] = "last"
    """The parameters that stay with the client: those of the last dense layer, all, or a list of
    their names."""

    def resolve(self, facts: Facts) -> "FedPer":
        if isinstance(facts.layout, Layout):
            if self.personal == "last" and not facts.layout.last_dense:
                raise ValueError(
                    "keeps the last dense layer, and this model has none; set algorithm.personal "
                    f"to some of {', '.join(facts.layout.names)}"
                )
            try:
                facts.layout.require(() if isinstance(self.personal, str) else self.personal)
            except ValueError as e:
                raise ValueError(f"keeps algorithm.personal: {e}") from e
        return self

    @property
    def _own(self) -> Set[str]:
        if self.personal == "all":
            return frozenset(self.layout.names)
        return frozenset(self.layout.last_dense if self.personal == "last" else self.personal)
