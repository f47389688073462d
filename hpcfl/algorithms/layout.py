"""The parameters of a model in its flat vector [P]: their names, shapes and places."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from torch import Tensor, cat, split_with_sizes, stack

from hpcfl.types import Vector


@dataclass(frozen=True)
class Layout:
    """The trained parameters in a flat vector: in ``named_parameters()`` order.

    Its functions work on one vector [P], under ``torch.func.vmap`` too.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    last_dense: tuple[str, ...] = ()
    """The parameters of the last dense layer; none where the model has no dense layer."""
    normalization: tuple[str, ...] = ()
    """The parameters of normalisation layers: their weights and biases."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each parameter."""
        return tuple(map(prod, self.shapes))

    @property
    def total(self) -> int:
        """P, the number of all parameters' entries."""
        return sum(self.sizes)

    def views(self, x: Vector) -> list[Tensor]:
        """Views of ``x`` in the parameters' shapes, in order."""
        pieces = split_with_sizes(x, self.sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def flat(self, tensors: Sequence[Tensor]) -> Vector:
        """One vector of the parameters' values, in order: the inverse of ``views``."""
        return cat([tensor.reshape(-1) for tensor in tensors])

    @cached_property
    def matrices(self) -> tuple[str, ...]:
        """The parameters of two or more dimensions."""
        return tuple(
            name for name, shape in zip(self.names, self.shapes, strict=True) if len(shape) > 1
        )

    def means(self, x: Vector) -> Vector:
        """The mean of each parameter's entries: one number for each, in order."""
        return stack([piece.mean() for piece in split_with_sizes(x, self.sizes)])

    def spread(self, numbers: Vector) -> Vector:
        """A vector [P] whose entries are their parameter's number, as ``means`` gives them."""
        pairs = zip(numbers.unbind(), self.sizes, strict=True)
        return cat([number.expand(size) for number, size in pairs])

    def take(self, x: Vector, names: Collection[str]) -> Vector:
        """The entries of ``x`` that belong to these parameters, in the vector's order."""
        pieces = split_with_sizes(x, self.sizes)
        own = [piece for piece, name in zip(pieces, self.names, strict=True) if name in names]
        return cat(own) if own else x[:0].clone()  # a view would keep all of x in memory

    def join(self, x: Vector, names: Collection[str], part: Vector) -> Vector:
        """``x``, but with the entries of these parameters from ``part``, as ``take`` gives them."""
        own = [size if name in names else 0 for name, size in self._sized]
        ends = list(accumulate(own))
        pieces = split_with_sizes(x, self.sizes)
        return cat(
            [
                part[end - size : end] if size else piece
                for piece, size, end in zip(pieces, own, ends, strict=True)
            ]
        )

    def divided(self, count: int) -> tuple[tuple[str, ...], ...]:
        """The names in ``count`` parts that follow one another, of nearly equal size.

        Each part but the last has the size that is nearest to the mean of it and those after it, of
        two such sizes the smaller one.  No part is empty where there are as many names.
        """
        ends, begin = [0, *accumulate(self.sizes)], 0
        parts = []
        for left in range(count, 1, -1):  # parts
            rest, possible = ends[-1] - ends[begin], range(begin + 1, len(self.names) - left + 2)
            distances = ((abs(left * (ends[n] - ends[begin]) - rest), n) for n in possible)
            _, end = min(distances, default=(0, begin))
            parts.append(self.names[begin:end])
            begin = end
        return (*parts, self.names[begin:])

    def require(self, names: Collection[str]) -> None:
        """Check that the model has these parameters.

        Raises:
            ValueError: it has not; the message lists those that it has.
        """
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise ValueError(
                f"the model has no parameter {unknown[0]!r}, expected some of "
                f"{', '.join(self.names)}"
            )

    @property
    def features(self) -> int:
        """F, the width of the last dense layer's inputs; 0 where there is no such layer."""
        pairs = zip(self.names, self.shapes, strict=True)
        wide = [shape[1] for name, shape in pairs if name in self.last_dense and len(shape) == 2]
        return wide[0] if wide else 0

    @property
    def _sized(self) -> list[tuple[str, int]]:
        return list(zip(self.names, self.sizes, strict=True))


def stand_in(size: int) -> Layout:
    """A made-up layout of P = ``size`` entries, for a trial without the job's model."""
    shapes: dict[str, tuple[int, ...]] = {}
    if size > 10:
        shapes = {"hidden.weight": (1, size - 8), "norm.weight": (1,), "output.weight": (2, 3)}
    else:
        shapes = {"output.weight": (1, max(1, size - 1))}
    if size > 1:
        shapes["output.bias"] = (1,)
    return Layout(
        tuple(shapes),
        tuple(shapes.values()),
        last_dense=tuple(name for name in shapes if name.startswith("output")),
        normalization=tuple(name for name in shapes if name.startswith("norm")),
    )
