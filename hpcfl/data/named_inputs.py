"""Several inputs of an example, by name, in one row of bytes.

Batches, blocks and files then have one tensor of inputs, whatever the model takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hpcfl.errors import DataError

_ALIGNMENT = 8  # bytes, of the widest type: a row's inputs are views of it, none is copied


class Input(NamedTuple):
    """One of the inputs of an example."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one example."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')}{[*self.shape]}"


@dataclass(frozen=True)
class NamedInputs:
    """Where the inputs of an example are in its row of bytes; also the transform of such rows."""

    inputs: tuple[Input, ...]
    augment: ClassVar[bool] = False

    @classmethod
    def of(cls, where: str, tensors: Mapping[str, Tensor]) -> "NamedInputs":
        """The inputs of these names, shapes and types.

        Args:
            where: the tensors are from, for messages.
            tensors: [n, ...] each.

        Raises:
            DataError: a name is none of an argument, or the tensors are not of as many examples, or
                hold no number.
        """
        counts = {name: len(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            if not name.isidentifier():
                raise DataError(
                    f"{where}: an input is called {name!r}, expected the name of an argument of "
                    "the model's forward"
                )
            if len(tensor) != len(next(iter(tensors.values()))):
                raise DataError(
                    f"{where}: its inputs have {counts} examples, expected as many of each"
                )
            if 0 in tensor.shape[1:]:
                raise DataError(
                    f"{where}: an example of {name} has the shape {tuple(tensor.shape[1:])}, which "
                    "holds no number; expected one at least"
                )
        return cls(
            tuple(Input(name, tuple(one.shape[1:]), one.dtype) for name, one in tensors.items())
        )

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs))

    def __call__(self, inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
        """Rows [B, S] of what the model is given, of stored rows [B, R]."""
        return self.given(dtype).pack(self.unpack(inputs))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of one example's inputs, by name."""
        return {one.name: one.shape for one in self.inputs}

    def given(self, dtype: torch.dtype) -> "NamedInputs":
        """As the model is given them: floats of ``dtype``, integers as int64, booleans as such."""

        def given(one: Input) -> Input:
            if one.dtype.is_floating_point:
                return one._replace(dtype=dtype)
            return one if one.dtype == torch.bool else one._replace(dtype=torch.int64)

        return NamedInputs(tuple(map(given, self.inputs)))

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Rows of bytes [n, S] of tensors [n, ...], which are cast to the types of the inputs."""
        parts = []
        for one in self.inputs:
            tensor = tensors[one.name].to(one.dtype)
            flat = tensor.reshape(len(tensor), prod(one.shape)).contiguous().view(torch.uint8)
            parts.append(nn.functional.pad(flat, (0, -one.nbytes % _ALIGNMENT)))
        return torch.cat(parts, 1)

    def unpack(self, rows: Tensor) -> dict[str, Tensor]:
        """The inputs [n, ...] of rows of bytes [n, S], as views of them."""
        found, begin = {}, 0
        for one in self.inputs:
            part = rows[:, begin : begin + one.nbytes].view(one.dtype)
            found[one.name] = part.reshape(len(rows), *one.shape)
            begin += one.nbytes + -one.nbytes % _ALIGNMENT
        return found

    def call_by_name(self, model: nn.Module) -> None:
        """Let a call ``model(rows)`` unpack the rows; one by keyword stays what it is."""
        model.register_forward_pre_hook(self._keywords, prepend=True, with_kwargs=True)

    def _keywords(
        self, model: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if keywords:
            return args, keywords
        # Not views, of which a model's own ``view`` may refuse some.
        return (), {name: one.contiguous() for name, one in self.unpack(*args).items()}
