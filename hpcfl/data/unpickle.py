"""Read pickles of plain data and numpy arrays without running anything in them.

A pickle is a program that Python's unpickler runs.  Here its instructions are only read, by
``pickletools``, and those that make plain data and arrays are followed: nothing is imported, and of
what is called by name only the five functions below are known, which are not numpy's own, since
those believe whatever sizes and types a pickle tells them.
"""

import math
import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from pickletools import genops
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DataError
from hpcfl.io.files import read_error, refuse_large_file
from hpcfl.io.regular import read

_MOST = 1 << 28, 1 << 20  # bytes and instructions; CIFAR-100's largest file has half of the former
_DAMAGED = (pickle.UnpicklingError, ArithmeticError, LookupError, OSError, TypeError, ValueError)
_TYPE = re.compile(r"[biuf][1248]")
_COPIED = str | bytes | bytearray


class _Name(NamedTuple):
    """A class or function that the pickle names."""

    module: str
    name: str


class _Type:
    """Stands for a dtype of numbers."""

    def __init__(self, code: str | bytes, align: bool = False, copy: bool = True) -> None:
        self._code, self._order = _text(code), "<"
        if not _TYPE.fullmatch(self._code):
            raise ValueError(f"an array of type {self._code!r}")

    def set(self, state: Any) -> None:
        """Set the byte order; the other entries are for types that are not numbers."""
        _, order, *rest = state
        self._order = ">" if _text(order) == ">" else "<"
        if any(part is not None for part in rest[:3]):
            raise ValueError("an array of a type that is not of numbers")

    def read(self, content: bytes) -> NDArray[Any]:
        """All numbers in some bytes, in the machine's order."""
        if not isinstance(content, bytes | bytearray):
            raise TypeError(f"an array made of a {type(content).__name__}")
        stored = np.frombuffer(content, np.dtype(self._order + self._code))
        return stored.astype(self._code)


class _Array:
    """Stands for an array until its content is known."""

    array: NDArray[Any] | None = None

    def set(self, state: Any) -> None:
        """Set shape, type and bytes."""
        _, shape, dtype, fortran, content = state
        self.array = _shaped(content, dtype, shape, "F" if fortran else "C")


def _shaped(content: Any, dtype: _Type, shape: tuple[int, ...], order: str) -> NDArray[Any]:
    values = dtype.read(content)
    if math.prod(shape) != len(values) or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} with {len(values)} numbers")
    return values.reshape(shape, order="F" if order == "F" else "C")


def _text(text: str | bytes) -> str:
    """Decode a text that may come from Python 2, whose texts are bytes."""
    return text.decode("latin1") if isinstance(text, bytes) else str(text)


def _bytes(text: str, encoding: str) -> bytes:
    """Bytes as Python 3 writes them in old protocols: a text and the name of this encoding."""
    if encoding != "latin1":
        raise ValueError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


_CORES = ("numpy.core", "numpy._core")  # of numpy 1 and numpy 2
_CALLED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _bytes,
    **{(f"{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in _CORES},
    **{
        (f"{core}.multiarray", "scalar"): lambda dtype, content: dtype.read(content)[0]
        for core in _CORES
    },
    **{(f"{core}.numeric", "_frombuffer"): _shaped for core in _CORES},
}
_TAKEN = {("numpy", "ndarray"), *_CALLED}


def unpickle(path: Path) -> dict[str, Any]:
    """The dictionary that ``path`` holds; its values are arrays, lists, numbers or bytes.

    Raises:
        DataError: the file is missing or damaged, or holds anything that is not plain data.
    """
    try:
        if path.stat().st_size > _MOST[0]:
            raise ValueError(f"more than {_MOST[0]} bytes")
        content = _Reader(path).read(read(path))
    except _DAMAGED as error:
        reason = str(error) or type(error).__name__
        message = f"{path}: not a readable data file: {reason}"
        raise read_error(error, message, DataError) from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, expected a dictionary")
    return {
        key: value.array if isinstance(value, _Array) else value for key, value in content.items()
    }


class _Reader:
    """Follows the instructions of one pickle."""

    def __init__(self, path: Path) -> None:
        self._path, self._copied = path, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def read(self, content: bytes) -> Any:
        """The object in the pickle."""
        for count, (instruction, argument, _) in enumerate(genops(content)):
            if count > _MOST[1]:
                raise ValueError(f"more than {_MOST[1]} instructions")
            if instruction.name == "STOP":
                break
            if instruction.name not in _INSTRUCTIONS:
                raise ValueError(f"the instruction {instruction.name}, which makes no plain data")
            _INSTRUCTIONS[instruction.name](self, argument)
        return self.stack.pop()

    def pop(self, count: int) -> list[Any]:
        """Pop the values that were pushed last, in order."""
        if len(self.stack) < count:
            raise ValueError("it takes what is not there")
        return [self.stack.pop() for _ in range(count)][::-1]

    def marked(self) -> list[Any]:
        """Pop the values that were pushed since the last mark."""
        begin = self.marks.pop()
        return self.pop(len(self.stack) - begin)

    def fill(self, values: list[Any]) -> None:
        """Add to the list or the dictionary that was pushed last."""
        target = self.stack[-1]
        if isinstance(target, dict):
            self.put(target, values)
        elif isinstance(target, list):
            target.extend(values)
        else:
            raise TypeError(f"it fills a {type(target).__name__}")

    def call(self) -> Any:
        """The result of one of the known functions."""
        function, arguments = self.pop(2)
        self._copies(arguments)
        return _CALLED[function](*arguments)

    def build(self) -> None:
        """Set the state of a type or an array."""
        (state,) = self.pop(1)
        target = self.stack[-1]
        if not isinstance(target, _Type | _Array):
            raise TypeError(f"it builds a {type(target).__name__}")
        self._copies(state)
        target.set(state)

    def put(self, target: dict[str, Any], values: list[Any]) -> dict[str, Any]:
        """Add keys, which are texts, and values in turn."""
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise TypeError(f"a key that is a {type(key).__name__}")
            self._copies([key])
            target[_text(key)] = value
        return target

    def _copies(self, values: Iterable[Any]) -> None:
        """Count bytes before they are copied: few instructions can copy the same bytes many times.

        Raises:
            DataError: all copies together do not fit into this machine.
        """
        self._copied += sum(len(value) for value in values if isinstance(value, _COPIED))
        refuse_large_file(self._path, self._copied)


def _named(module: Any, name: Any) -> _Name:
    if (module, name) not in _TAKEN:
        raise ValueError(f"it wants {module}.{name}, which is no array: not loaded")
    return _Name(module, name)


def _push(make: Callable[[_Reader, Any], Any]) -> Callable[[_Reader, Any], None]:
    """The instruction that pushes the result of a function."""
    return lambda reader, argument: reader.stack.append(make(reader, argument))


def _remember(reader: _Reader, number: int) -> None:
    reader.memo[number] = reader.stack[-1]


_INSTRUCTIONS: dict[str, Callable[[_Reader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda reader, argument: None),
    **dict.fromkeys(
        (
            *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
            *("FLOAT", "BINFLOAT"),
            *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
            *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        ),
        _push(lambda reader, argument: argument),
    ),
    **dict.fromkeys(  # Python 2's, which are bytes
        ("STRING", "BINSTRING", "SHORT_BINSTRING"),
        _push(lambda reader, argument: argument.encode("latin1")),
    ),
    "NONE": _push(lambda reader, argument: None),
    "NEWTRUE": _push(lambda reader, argument: True),
    "NEWFALSE": _push(lambda reader, argument: False),
    "EMPTY_LIST": _push(lambda reader, argument: []),
    "EMPTY_DICT": _push(lambda reader, argument: {}),
    "EMPTY_TUPLE": _push(lambda reader, argument: ()),
    "LIST": _push(lambda reader, argument: reader.marked()),
    "DICT": _push(lambda reader, argument: reader.put({}, reader.marked())),
    "TUPLE": _push(lambda reader, argument: tuple(reader.marked())),
    "TUPLE1": _push(lambda reader, argument: tuple(reader.pop(1))),
    "TUPLE2": _push(lambda reader, argument: tuple(reader.pop(2))),
    "TUPLE3": _push(lambda reader, argument: tuple(reader.pop(3))),
    "MARK": lambda reader, argument: reader.marks.append(len(reader.stack)),
    "APPEND": lambda reader, argument: reader.fill(reader.pop(1)),
    "APPENDS": lambda reader, argument: reader.fill(reader.marked()),
    "SETITEM": lambda reader, argument: reader.fill(reader.pop(2)),
    "SETITEMS": lambda reader, argument: reader.fill(reader.marked()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _remember),
    "MEMOIZE": lambda reader, argument: _remember(reader, len(reader.memo)),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"), _push(lambda reader, number: reader.memo[number])
    ),
    "GLOBAL": _push(lambda reader, name: _named(*name.split(" ", 1))),
    "STACK_GLOBAL": _push(lambda reader, argument: _named(*reader.pop(2))),
    "REDUCE": _push(lambda reader, argument: reader.call()),
    "BUILD": lambda reader, argument: reader.build(),
}
