"""Train models of their own for some steps, each from a start of its own: only for their scores."""

from typing import NamedTuple

from hpcfl.algorithms.base import Message, Nothing
from hpcfl.algorithms.facts import Client
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import Vector


class Start(NamedTuple):
    """Stands for a client's state."""

    model: Vector


class FineTuning(FedAvg):
    """FedAvg's local steps, of each client from its own start; nothing is uploaded."""

    def first_point(self, message: Message, state: Start, client: Client) -> Vector:
        """The client's own start."""
        return state.model

    def finish(
        self, y: Vector, local: Message, message: Message, state: Start, client: Client
    ) -> tuple[Nothing, Nothing]:
        """Nothing: the last local model is all that is wanted."""
        return Nothing(), Nothing()
