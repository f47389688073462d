"""Prepare messages for a communication library: flat bytes, on its device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcfl.comm.base import P2PMessage


class StagedExchange:
    """What one rank sends and receives in one exchange.

    Args:
        sent: what it sends.
        received: room for what it receives.
        device: where the library takes and leaves tensors.
    """

    def __init__(
        self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage], device: torch.device
    ) -> None:
        self._room = [(room, _on(room, device)) for _, room in received]
        self.sent = [(rank, _octets(_on(tensor, device).contiguous())) for rank, tensor in sent]
        """Ranks, and bytes for them: uint8 [n]."""
        self.received = [
            (parcel.rank, _octets(landing))
            for parcel, (_, landing) in zip(received, self._room, strict=True)
        ]
        """Ranks, and room for bytes of them: uint8 [n]."""

    def deliver(self) -> None:
        """All has arrived: bring it to where it was wanted."""
        for room, landing in self._room:
            if landing is not room:
                room.copy_(landing)


def _on(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor, or a copy on another device than its own."""
    return tensor.detach().to(device) if tensor.device != device else tensor


def _octets(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
