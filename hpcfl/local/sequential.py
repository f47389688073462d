"""One client after the other, by plain autograd: the reference, bit for bit."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hpcfl.algorithms.base import Algorithm
from hpcfl.errors import ClientError, HpcflError
from hpcfl.local.error_context import named
from hpcfl.local.step import BatchGradient, ClientResult, ClientTask, Gradient
from hpcfl.types import Vector

_STEP = ("start_point", "gradient_point", "direction", "update_local")


class Sequential:
    """Trains the clients that a rank is given, in the order given."""

    def __init__(self, algorithm: Algorithm, gradient: Gradient, weight_decay: float) -> None:
        self._algorithm = algorithm
        self._gradient = gradient
        self._weight_decay = weight_decay
        own = (getattr(type(algorithm), hook) is getattr(Algorithm, hook) for hook in _STEP)
        self._plain = gradient.clip is None and all(own)

    def full_gradients(self, x: Vector, visits: Iterable[ClientTask]) -> list[Vector]:
        """Each client's gradient at ``x`` of its mean loss over all its examples.

        Raises:
            ClientError: a client's data or the model raised.
        """
        gradients = []
        for visit in visits:
            with named(visit, "survey"):
                gradients.append(self._gradient.full(x, visit.full_batches))
        return gradients

    def train(
        self,
        message: Any,
        visits: Sequence[ClientTask],
        states: Sequence[Any],
        *,
        ends: bool = False,
    ) -> list[ClientResult]:
        """Play every visit's local round, all from the same message.

        Args:
            message: what the clients of the cohort receive.
            visits: of the clients that this rank trains.
            states: theirs.
            ends: return their last local models too.

        Raises:
            ClientError: a client's data, the model or the algorithm raised.
        """
        return [
            self._visit(message, visit, state, ends)
            for visit, state in zip(visits, states, strict=True)
        ]

    def _visit(self, message: Any, visit: ClientTask, state: Any, ends: bool) -> ClientResult:
        algorithm, gradient, about = self._algorithm, self._gradient, visit.client
        with named(visit, "begin"):
            local = algorithm.begin(message, state, about)
        y = message.x.clone()
        loss = torch.zeros((), dtype=torch.float64, device=y.device)
        rate, steps, step = algorithm.step_scale * float(about.lr), int(about.steps), 0
        try:
            for step in range(steps):
                batch, seed = next(visit.batches), visit.dropout_seed + step
                if self._plain:
                    loss += gradient.descend(y, batch, seed, rate, self._weight_decay)
                    continue
                oracle = BatchGradient(gradient, batch, seed)
                start = algorithm.start_point(y, local, about)
                point = algorithm.gradient_point(y, start, local, about)
                d = algorithm.direction(point, local, oracle, about)
                if oracle.loss is not None:
                    loss += oracle.loss
                if self._weight_decay:
                    d = d.add(point, alpha=self._weight_decay)
                local = algorithm.update_local(local, d, about)
                torch.add(start, d, alpha=-rate, out=y)
        except HpcflError:  # damaged data, which says where it is
            raise
        except Exception as e:
            raise ClientError(visit.client_id, visit.round + 1, step, "step") from e
        with named(visit, "finish"):
            upload, after = algorithm.finish(y, local, message, state, about)
        return ClientResult(upload, after, loss / steps, y if ends else y.new_empty(0))
