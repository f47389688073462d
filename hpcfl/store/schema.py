"""The schema of a client state: its fields with their shapes and dtypes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# The dtypes of states, and of their files: numpy has no bfloat16, whose bits are stored as uint16,
# with "bfloat16" as an attribute.
STORED = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.int64: np.dtype(np.int64),
    torch.bfloat16: np.dtype(np.uint16),
}


class Field(NamedTuple):
    """One tensor of a state."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    shared: bool = False
    """Whether all clients of a round keep the same tensor: the model that they received."""

    @property
    def bytes(self) -> int:
        """Bytes of one tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def check(self, tensor: Tensor) -> None:
        """Check a tensor's dtype and shape.

        Raises:
            ValueError: they differ from the field's.
        """
        if tensor.dtype != self.dtype or tensor.shape != self.shape:
            raise ValueError(
                f"state field {self.name!r}: got {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {self.dtype} {self.shape}"
            )


class StateSchema(NamedTuple):
    """The type and the fields of a state; ``hpcfl.engine.dry_round`` finds them."""

    type: Callable[..., Any]
    fields: tuple[Field, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one client's state."""
        return sum(field.bytes for field in self.fields)

    @property
    def own(self) -> "StateSchema":
        """The schema of the fields that are the client's own."""
        return StateSchema(part, tuple(f for f in self.fields if not f.shared))

    @property
    def shared(self) -> "StateSchema":
        """The schema of the fields that the clients of a round share."""
        return StateSchema(part, tuple(f for f in self.fields if f.shared))

    def narrowed(self, dtype: torch.dtype) -> "StateSchema":
        """This schema, with the vectors of wider floating-point numbers in ``dtype``.

        Single numbers stay: they take no space, and one may be a round, which must be exact.
        """
        fields = (
            f._replace(dtype=dtype)
            if f.shape and f.dtype.is_floating_point and f.dtype.itemsize > dtype.itemsize
            else f
            for f in self.fields
        )
        return StateSchema(self.type, tuple(fields))

    def split(self, state: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Split a state into its own part and its shared part."""
        pairs = list(zip(self.fields, state, strict=True))
        return part(*(t for f, t in pairs if not f.shared)), part(
            *(t for f, t in pairs if f.shared)
        )

    def join(self, own: Any, shared: Any) -> Any:
        """Join the two parts that ``split`` returns."""
        left, right = iter(own), iter(shared)
        return self.type(*(next(right if f.shared else left) for f in self.fields))


def part(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The type of a part of a state: called with its tensors, as the type of a state is."""
    return tensors
