"""Prepare tensors for a communication library: as flat bytes, on the library's device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcfl.comm.base import P2PMessage


class StagedExchange:
    """The buffers of one rank for one exchange.

    Args:
        sent: the tensors to send.
        received: the buffers to fill.
        device: where the library reads and writes tensors.
    """

    def __init__(
        self, sent: Sequence[P2PMessage], received: Sequence[P2PMessage], device: torch.device
    ) -> None:
        self._targets = [(target, _on(target, device)) for _, target in received]
        self.sent = [(rank, _as_bytes(_on(tensor, device).contiguous())) for rank, tensor in sent]
        """Ranks, and the bytes to send to each: uint8 [n]."""
        self.received = [
            (message.rank, _as_bytes(staged))
            for message, (_, staged) in zip(received, self._targets, strict=True)
        ]
        """Ranks, and a buffer for the bytes of each: uint8 [n]."""

    def deliver(self) -> None:
        """Copy what was received to the tensors on other devices; call it after the exchange."""
        for target, staged in self._targets:
            if staged is not target:
                target.copy_(staged)


def _on(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor itself if it is on ``device``, else a copy there."""
    return tensor.detach().to(device) if tensor.device != device else tensor


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
