"""Recognise a state that consists of the same tensors as another."""

import weakref
from collections.abc import Sequence

from torch import Tensor


class SameTensors:
    """Recognises a state by its very tensors, without keeping them."""

    def __init__(self, state: Sequence[Tensor]) -> None:
        self._tensors = [weakref.ref(tensor) for tensor in state]

    def of(self, state: Sequence[Tensor]) -> bool:
        """Whether ``state`` is the one."""
        return len(state) == len(self._tensors) and all(
            mark() is tensor for mark, tensor in zip(self._tensors, state, strict=True)
        )
