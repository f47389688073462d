"""Pickle a torch module into bytes that are the same for equal modules, in every process."""

import io
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import nn

_PurePython: Any = pickle._Pickler  # that in C calls no method that could be replaced


class _Pickler(_PurePython):  # type: ignore[misc]
    """Writes the same bytes for equal objects, whichever process made them.

    Those of pickle itself depend on more: whether equal texts are one object or several, the order
    of a set of texts, which is another one in each process, and on which GPU a tensor is.
    """

    dispatch: ClassVar[dict[type, Callable[..., None]]] = dict(_PurePython.dispatch)

    def memoize(self, obj: Any) -> None:
        if not isinstance(obj, str | bytes | tuple):
            super().memoize(obj)

    def save_pers(self, pid: Any) -> None:
        # torch's name of a storage: "storage", its type, number, device and size.
        super().save_pers((*pid[:3], "cpu", *pid[4:]))

    def _save_sorted(self, obj: Any) -> None:
        self.save_reduce(type(obj), (sorted(obj, key=repr),), obj=obj)

    dispatch[set] = dispatch[frozenset] = _save_sorted


def pickled(module: nn.Module) -> bytes:
    """The content of a file for ``torch.load``, tensors on the CPU.

    Raises:
        Exception: the module holds what cannot be pickled.
    """
    writer, buffer = ModuleType("writer"), io.BytesIO()
    writer.__dict__.update(Pickler=_Pickler)
    torch.save(module, buffer, pickle_module=writer)
    return buffer.getvalue()


def names_in(content: bytes) -> list[tuple[str, str]]:
    """The classes and functions that a pickled module names: of each its module and its name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        opcodes = pickletools.genops(archive.read(path))
        names = {str(text) for opcode, text, _ in opcodes if opcode.name == "GLOBAL"}
    pairs = (name.split(" ", 1) for name in sorted(names))
    return [(module, name) for module, name in pairs]
