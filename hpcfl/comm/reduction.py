"""The mean of a round's uploads over all ranks: the interface, the buffer, the check for NaN.

``ExactReduction`` and ``FastReduction`` are the two implementations.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.comm.base import Comm
from hpcfl.errors import DivergedError

_ALL_FINITE = -(2.0**53)  # less than the code of any upload that is not finite
_SMALL = 1 << 14  # elements up to which one stacked tensor beats one call per client

Column = Tensor | list[Tensor]
"""One field of K clients' uploads: K flat tensors [n], or [K, n] stacked where n is small."""


class BufferLayout(NamedTuple):
    """The offsets of the fields of an upload in one flat buffer."""

    type: type[Any]
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    bounds: tuple[tuple[int, int], ...]  # [begin, end) in the buffer, one per field
    unweighted: frozenset[str]  # fields averaged with weight 1

    @classmethod
    def of(cls, template: Any, unweighted: frozenset[str]) -> "BufferLayout":
        """The layout of ``template``, a NamedTuple of (meta) tensors."""
        ends = np.cumsum([0, *(field.numel() for field in template)]).tolist()
        shapes = tuple(field.shape for field in template)
        return cls(type(template), template._fields, shapes, tuple(pairwise(ends)), unweighted)

    @property
    def numel(self) -> int:
        """Elements of the whole buffer."""
        return self.bounds[-1][1]

    def columns(self, uploads: Sequence[Any], device: torch.device) -> list[Column]:
        """For each field, the values of all clients on the device.

        Only a field that is one of a client's numbers, such as its steps, comes from the CPU.
        """
        fields = range(len(self.names))
        return [_column([upload[i].to(device) for upload in uploads]) for i in fields]

    def factors(self, weights: Sequence[float]) -> list[Sequence[float]]:
        """For each field, the clients' weights."""
        ones = [1.0] * len(weights)
        return [ones if name in self.unweighted else weights for name in self.names]

    def totals(self, total: float, cohort: int) -> list[float]:
        """For each field, the divisor that makes a mean of its sum."""
        return [float(cohort) if name in self.unweighted else total for name in self.names]


class FieldBuffer(NamedTuple):
    """One field's part of the buffer that the ranks sum, in one round."""

    sum: Tensor  # [n], a view of the buffer
    peak: float  # the largest |weight x value| over the cohort
    divisor: float  # of the sum, which gives the mean
    cohort: int  # clients over all ranks


def _column(tensors: list[Tensor]) -> Column:
    if tensors and tensors[0].numel() <= _SMALL:
        stacked = torch.stack(tensors)
        return stacked.view(len(tensors), tensors[0].numel())
    return [tensor.reshape(-1) for tensor in tensors]


def _magnitudes(column: Column) -> list[float]:
    """Each client's largest absolute value; NaN if it sent one."""
    if isinstance(column, Tensor):
        if not column.numel():
            return [0.0] * len(column)
        tops: list[float] = column.abs().amax(1).tolist()
        return tops
    if not column:
        return []
    if column[0].device.type == "cuda":  # two kernels for all clients
        largest: list[float] = torch.stack(torch._foreach_norm(column, math.inf)).tolist()
        return largest
    # One pass without a temporary, and one transfer from the device for all clients.
    ends = torch.stack([end for tensor in column for end in torch.aminmax(tensor)]).tolist()
    return [max(-low, high) for low, high in zip(ends[::2], ends[1::2], strict=True)]


def _all_bytes(upload: Any) -> int:
    return sum(field.nbytes for field in upload)


class ReducedMean(NamedTuple):
    """The result of ``Reduction.mean``, the same on every rank."""

    mean: Any
    """The mean upload, a NamedTuple as the clients' uploads are."""
    bytes: int
    """The bytes of all clients' uploads together, as ``bytes_of`` counts them."""
    maxima: NDArray[np.float64]
    """The elementwise maximum over ranks of the ``local_values``."""


def find_peaks(
    comm: Comm,
    layout: BufferLayout,
    columns: list[Column],
    factors: list[Sequence[float]],
    clients: Sequence[int],
    local_values: NDArray[np.float64],
    round: int,
) -> tuple[list[float], NDArray[np.float64]]:
    """Collective: check that all uploads are finite, and find each field's peak.

    One all-reduced maximum does it all.  The lowest client whose upload is not finite is coded with
    the field and the rank into one number, exact while clients x fields x ranks < 2**53.

    Returns:
        Each field's largest |weight x value| over the cohort; the maxima of ``local_values``.

    Raises:
        DivergedError: on every rank, if a client's upload is not finite.
    """
    fields = len(layout.names)
    # Negative codes, so that the maximum is the lowest client's.
    peaks, code = [0.0] * fields, _ALL_FINITE
    for field, (column, weights) in enumerate(zip(columns, factors, strict=True)):
        terms = [w * top for w, top in zip(weights, _magnitudes(column), strict=True)]
        if all(map(math.isfinite, terms)):
            peaks[field] = max(terms, default=0.0)
        else:
            client = min(c for c, t in zip(clients, terms, strict=True) if not math.isfinite(t))
            code = max(code, -float((client * fields + field) * comm.size + comm.rank))
    maxima = comm.allreduce_max(np.concatenate(([*peaks, code], local_values)))
    if maxima[fields] > _ALL_FINITE:
        rest, rank = divmod(int(-maxima[fields]), comm.size)
        client, field = divmod(rest, fields)
        message = (
            f"client {client} on rank {rank}, round {round}: its upload {layout.names[field]!r} is"
            " not finite; the round was not summed. If its examples are finite and no larger than "
            "others, lower local.lr or set local.clip"
        )
        raise DivergedError(message)
    return maxima[:fields].tolist(), maxima[fields + 1 :]


class Reduction(ABC):
    """Averages the uploads of a round, spread over the ranks, into one mean on every rank.

    Args:
        comm: the group of ranks.
        template: a NamedTuple of meta tensors, shaped like an upload.
        unweighted: fields averaged with weight 1 over |S|.
        dtype: of the uploads and of the mean, float32 or float64.
        device: of the uploads and of the mean.
        bytes_of: the bytes of an upload that a real client would send; None: all.
    """

    def __init__(
        self,
        comm: Comm,
        template: Any,
        unweighted: frozenset[str],
        dtype: torch.dtype,
        device: torch.device,
        bytes_of: Callable[[Any], int] | None = None,
    ) -> None:
        self._comm, self._dtype, self._bytes_of = comm, dtype, bytes_of or _all_bytes
        self._layout = BufferLayout.of(template, unweighted)
        self._device = device

    def mean(
        self,
        uploads: list[Any],
        clients: Sequence[int],
        weights: Sequence[float],
        total: float,
        cohort: int,
        local_values: NDArray[np.float64],
        *,
        round: int,
    ) -> ReducedMean:
        """Collective: average the uploads of the cohort.

        Two all-reduces: a small maximum, then the sum of one buffer for all fields.

        Args:
            uploads: those of the clients that this rank trained, one NamedTuple each; may be empty.
                Emptied once they are summed, so that the mean has their memory.
            clients: their ids, each in the cohort of one rank only.
            weights: theirs, not negative; unweighted fields ignore them.
            total: the weights' sum over the whole cohort, positive, the same on every rank.
            cohort: clients over all ranks, at least 1, the same on every rank.
            local_values: finite numbers of this rank; the maximum over ranks is returned, which
                costs no all-reduce of its own.
            round: for the error message only.

        Raises:
            DivergedError: on every rank, before anything is summed, if an upload is not finite.
        """
        layout = self._layout
        columns = layout.columns(uploads, self._device)
        factors = layout.factors(weights)
        # Every upload has one shape.  A rank without a client learns its size by the maximum.
        size = max((self._bytes_of(upload) for upload in uploads), default=0)
        values = np.append(local_values, size)
        peaks, maxima = find_peaks(self._comm, layout, columns, factors, clients, values, round)
        divisors = layout.totals(total, cohort)
        # Not kept between rounds, while clients train: it is the largest block of a round.
        summed = self.summed(self._dtype)
        buffer = torch.empty(layout.numel, dtype=summed, device=self._device)
        fields = [
            FieldBuffer(buffer[begin:end], peak, divisor, cohort)
            for (begin, end), peak, divisor in zip(layout.bounds, peaks, divisors, strict=True)
        ]
        for field, column, factor in zip(fields, columns, factors, strict=True):
            self.accumulate(field, column, factor)
        del columns, column
        uploads.clear()
        self._comm.allreduce_sum(buffer)
        means = map(self.restore, fields)
        shaped = (mean.view(shape) for mean, shape in zip(means, layout.shapes, strict=True))
        return ReducedMean(layout.type(*shaped), cohort * int(maxima[-1]), maxima[:-1])

    @abstractmethod
    def summed(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the buffer that the ranks sum, for uploads of ``dtype``."""

    @abstractmethod
    def accumulate(self, field: FieldBuffer, column: Column, weights: Sequence[float]) -> None:
        """Set the buffer's sum to that of this rank's clients."""

    @abstractmethod
    def restore(self, field: FieldBuffer) -> Tensor:
        """The flat mean, a new tensor, from the buffer's sum over all ranks."""
