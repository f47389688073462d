"""A client's local training in one round: its task and its result."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpcfl.algorithms.facts import Client
from hpcfl.clients.examples import to_device
from hpcfl.data.partition import ExampleRows
from hpcfl.types import Batch, IntArray


class BatchIndices(NamedTuple):
    """The examples of one local step, among those of its client."""

    positions: ExampleRows  # [B], from 0 to n_i - 1
    draws: IntArray | None  # [B], see ``Transform``; None where nothing is augmented


class ClientTask(NamedTuple):
    """One client's local training in one round: the input of an executor."""

    client_id: int
    round: int
    seed: int  # of the job
    client: Client
    steps: int  # those of ``client``, as a number
    lr: float  # of the first step, likewise
    batches: Iterator[Batch]
    """The batch of each local step."""
    full_batches: Iterator[tuple[int, Batch]]
    """All examples without augmentation, each batch with the number of terms of its mean loss."""
    dropout_seed: int
    """The seed of the first local step; that of each further step is larger by 1."""
    batch_indices: Iterator[BatchIndices]
    """The indices of the same batches, for a block that gathers those of many clients at once."""
    lr_of_step: Callable[[int], float] | None = None
    """The learning rate of each local step, the same of all clients of a round; None where every
    step has ``lr``."""

    def client_in(self, step: int) -> Client:
        """The client in one of its local steps."""
        now = self.client._replace(step=number(step)) if step else self.client
        return now if self.lr_of_step is None else now._replace(lr=number(self.lr_of_step(step)))

    @property
    def finishing(self) -> Client:
        """The client after its steps, with the learning rate of the last one."""
        if self.lr_of_step is None:
            return self.client
        return self.client._replace(lr=number(self.lr_of_step(self.steps - 1)))


class ClientResult(NamedTuple):
    """The result of one client's local training in one round."""

    upload: Any
    state: Any
    loss: Tensor  # 0-d, the mean over its local steps of the batch loss
    local_model: Any  # [P], its last local model; None unless ``local_models`` is True


@lru_cache(1 << 16)
def number(value: float) -> Tensor:
    """A 0-d tensor; hooks change nothing in place, so that one serves all clients.

    Never of integers: a Python float to the power of such a tensor is float32.
    """
    return torch.tensor(value, dtype=torch.float64)


ClientTensors = Mapping[str, Any]
NUMBERS = ("round", "step", "steps", "lr", "examples")
"""The fields of a client that are numbers, which are in memory."""


def numbers_of(clients: Sequence[Client], device: torch.device) -> Tensor:
    """[5, K] in float64, the ``NUMBERS`` of K clients: one copy to the device, not 5 K."""
    rows = [torch.stack([getattr(client, name) for client in clients]) for name in NUMBERS]
    return to_device(torch.stack(rows), device)


def tensors_of(client: Client) -> ClientTensors:
    """What a client has besides, by field: ``vmap`` and graphs take tensors, and no None."""
    return {
        field: value
        for field, value in client._asdict().items()
        if value is not None and field not in NUMBERS
    }
