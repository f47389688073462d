"""A data set in a file of bytes and a description in JSON: reading it executes nothing.

The description names tensors, arrays, numbers and texts, and the classes and functions of hpcfl in
the tables below.  What is none of these, such as a transform of the user's, cannot be written.
"""

import json
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from io import FileIO
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.data.base import Dataset
from hpcfl.data.colour import Colour, PersonalColours
from hpcfl.data.grayscale import Grey
from hpcfl.data.images import CropFlipNormalize
from hpcfl.data.named_inputs import Input, NamedInputs
from hpcfl.data.partition import ExampleRows, RowRanges
from hpcfl.data.sources.arrays import cast, to_indices
from hpcfl.data.sources.huggingface import to_unit
from hpcfl.types import Examples

_CLASSES: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    **{
        kind.__name__: (kind, tuple(field.name for field in fields(kind) if field.init))
        for kind in (Dataset, NamedInputs, Grey, CropFlipNormalize, Colour, PersonalColours)
    },
    **{kind.__name__: (kind, kind._fields) for kind in (Examples, Input)},
    "RowRanges": (RowRanges, ("starts", "sizes")),
}
"""Classes by name, and what an object of each is made of."""
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (cast, to_indices, to_unit)
}
_DTYPES = {str(found): found for found in vars(torch).values() if isinstance(found, torch.dtype)}
_ARRAYS = {np.dtype(code).str: np.dtype(code) for code in "?bBhHiIlLqQefd"}
_ALIGNMENT = 64  # bytes, more than any type needs


def write(dataset: Dataset, file: BinaryIO) -> None:
    """Write a data set.

    Raises:
        TypeError, RuntimeError: a part of it cannot be described.
        OSError: the disk is full or fails.
    """
    description = _Description()
    head = json.dumps([description.of(dataset), [part.size for part in description.parts]])
    file.write(len(head).to_bytes(8, "little") + head.encode())
    for part in description.parts:
        file.write(bytes(-file.tell() % _ALIGNMENT))
        file.write(part.data)


def map_file(file: FileIO) -> Dataset:
    """Map a written data set; writing to its tensors changes pages of this process alone.

    Raises:
        OSError, ValueError, RuntimeError, LookupError, TypeError: it cannot be mapped.
    """
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    end = 8 + int.from_bytes(mapped[:8], "little")
    text, sizes = json.loads(mapped[8:end])
    parts = []
    for size in sizes:
        begin = end + -end % _ALIGNMENT
        parts.append(np.frombuffer(mapped, np.uint8, size, begin))
        end = begin + size
    dataset = _Restored(parts).of(text)
    if not isinstance(dataset, Dataset):
        raise TypeError(f"it holds a {type(dataset).__name__}")
    return dataset


class _Description:
    """Makes the description of a value, and collects the bytes that it names."""

    def __init__(self) -> None:
        self.parts: list[NDArray[np.uint8]] = []
        self._storages: dict[tuple[int, int], int] = {}
        """The part of each storage, by its address: tensors may share one."""

    def of(self, value: Any) -> Any:
        """Describe a value.

        Raises:
            TypeError: it is of no known type.
        """
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        word = kind.__name__
        known, names = _CLASSES.get(word, (None, ()))
        if known is kind:
            return {word: [self.of(getattr(value, name)) for name in names]}
        word = getattr(value, "__name__", "")
        if _FUNCTIONS.get(word) is value:
            return {"function": word}
        if kind in self._KINDS:
            return self._KINDS[kind](self, value)
        raise TypeError(f"{getattr(value, '__qualname__', kind.__qualname__)} is not hpcfl's own")

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        return {"tuple": [*map(self.of, value)]}

    def _range(self, value: range) -> Any:
        return {"range": [value.start, value.stop, value.step]}

    def _rows(self, clients: list[ExampleRows]) -> Any:
        """The rows of each client."""
        rows: NDArray[Any] = np.concatenate([np.empty(0, np.int64), *clients])
        return {"rows": [self._array(rows), self._array(np.array([*map(len, clients)], int))]}

    def _array(self, array: NDArray[Any]) -> Any:
        """The part, type and shape of an array."""
        if array.dtype.str not in _ARRAYS:
            raise TypeError(f"an array of {array.dtype} cannot be copied")
        self.parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return {"array": [len(self.parts) - 1, array.dtype.str, array.shape]}

    def _tensor(self, tensor: Tensor) -> Any:
        """The part, type, offset, shape and strides: those of a copy must not differ."""
        if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
            raise TypeError(f"a tensor on {tensor.device}, or a lazy view, cannot be copied")
        storage = tensor.untyped_storage()
        # Two of different sizes may begin at one address, as of a[:4] and a.
        key = storage.data_ptr(), storage.nbytes()
        number = self._storages.setdefault(key, len(self.parts))
        if number == len(self.parts):
            self.parts.append(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
        at = tensor.storage_offset(), tensor.shape, tensor.stride()
        return {"tensor": [number, self._dtype(tensor.dtype), *at]}

    def _dtype(self, dtype: torch.dtype) -> Any:
        return {"dtype": str(dtype)}

    _KINDS: ClassVar[Mapping[type, Callable[..., Any]]] = {
        tuple: _tuple,
        range: _range,
        list: _rows,
        np.ndarray: _array,
        Tensor: _tensor,
        torch.dtype: _dtype,
    }


class _Restored:
    """Makes values of their descriptions and of the parts that these name.

    A damaged description is a ValueError, RuntimeError, LookupError or TypeError.
    """

    def __init__(self, parts: Sequence[NDArray[np.uint8]]) -> None:
        self._parts = parts
        self._kinds: Mapping[str, Callable[[Any], Any]] = {
            "function": _FUNCTIONS.__getitem__,
            "tuple": tuple,
            "range": lambda of: range(*of),
            "rows": lambda of: self._rows(*of),
            "array": lambda of: self._array(*of),
            "tensor": lambda of: self._tensor(*of),
            "dtype": _DTYPES.__getitem__,
        }

    def of(self, text: Any) -> Any:
        """The value of a description."""
        if isinstance(text, list):
            return [*map(self.of, text)]
        if not isinstance(text, dict):
            return text
        ((kind, content),) = text.items()
        found = self.of(content)
        if kind in _CLASSES:
            known, names = _CLASSES[kind]
            return known(**dict(zip(names, found, strict=True)))
        return self._kinds[kind](found)

    def _rows(self, rows: ExampleRows, sizes: ExampleRows) -> list[ExampleRows]:
        return np.split(rows, np.cumsum(sizes)[:-1]) if len(sizes) else []

    def _array(self, part: int, dtype: str, shape: list[int]) -> NDArray[Any]:
        return self._parts[part].view(_ARRAYS[dtype]).reshape(shape)

    def _tensor(
        self, part: int, dtype: torch.dtype, offset: int, shape: list[int], stride: list[int]
    ) -> Tensor:
        whole = torch.from_numpy(self._parts[part]).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(whole, offset, shape, stride)
