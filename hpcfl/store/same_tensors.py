"""Recognize a state that consists of the same tensor objects as another."""

import weakref
from collections.abc import Sequence

from torch import Tensor


class SameTensors:
    """Remembers the tensor objects of a state by weak references, without keeping them alive.

    The clients of a round often keep the model that they all received.  Comparing objects finds
    that at once; comparing values would read every state.
    """

    def __init__(self, state: Sequence[Tensor]) -> None:
        self._tensors = [weakref.ref(tensor) for tensor in state]

    def match(self, state: Sequence[Tensor]) -> bool:
        """Whether ``state`` consists of the remembered tensors."""
        return len(state) == len(self._tensors) and all(
            reference() is tensor for reference, tensor in zip(self._tensors, state, strict=True)
        )
