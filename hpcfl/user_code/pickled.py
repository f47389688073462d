"""Pickle the objects that ``hpcfl.run`` was given, with the classes and functions of ``__main__``.

cloudpickle writes these by value, with what they use; those of importable modules by their names.
Its bytes are not the same in two processes: it gives every class a random number, and sets have
another order.  So rank 0's file is the one, and ``fingerprint`` tells whether two are of equal
objects.
"""

import dataclasses
import io
import pickletools
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]  # it has no types
import torch

from hpcfl.user_code.find_object import MAIN, Content
from hpcfl.user_code.names import digest_of

_GPU = re.compile(r"cuda(:\d+)?")  # of which a tensor is
_CONSTANTS = ("NONE", "NEWTRUE", "NEWFALSE")


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves out the random numbers of classes, by which a process would take two for one."""

    modules: ClassVar[set[str]]
    lines = True

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            if self.lines:  # cloudpickle leaves out the file, which error messages name
                make, arguments = self.dispatch_table[CodeType](obj)
                return make, tuple(
                    obj.co_filename if part == "<dynamic-code>" else part for part in arguments
                )
            consts = (
                sorted(map(repr, value)) if isinstance(value, frozenset) else value
                for value in obj.co_consts
            )
            return tuple, ((obj.co_code, *consts, obj.co_names, obj.co_varnames),)
        if type(obj).__module__ == "dataclasses":  # MISSING and the like are compared by identity
            for name, value in vars(dataclasses).items():
                if value is obj:
                    return name
        named = obj.__name__ if isinstance(obj, ModuleType) else getattr(obj, "__module__", None)
        self.modules.add(str(named))
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple):
            make, arguments, *rest = reduced
            if isinstance(arguments, tuple) and len(arguments) > 2:
                return make, (*arguments[:-2], None, arguments[-1]), *rest
        if isinstance(obj, FunctionType) and isinstance(reduced, tuple) and not self.lines:
            reduced[1][1].pop("__file__", None)  # of the globals
        return reduced


def pickled(objects: Mapping[str, Any]) -> tuple[bytes, str]:
    """The content of a kept file, and its fingerprint, which is the same for equal objects.

    Args:
        objects: by name.

    Raises:
        Exception: one cannot be pickled.
    """
    names = _names_in_annotations(objects)
    plain, modules = _saved((objects, names), lines=False)
    content, _ = _saved(Content(dict(objects), names, modules)._asdict(), lines=True)
    return content, _fingerprint(plain)


def _saved(found: Any, *, lines: bool) -> tuple[bytes, list[str]]:
    """The bytes, and the modules that are named in them."""
    modules: set[str] = set()
    writer, buffer = ModuleType("writer"), io.BytesIO()
    pickler = type("Pickler", (_Pickler,), {"modules": modules, "lines": lines})
    writer.__dict__.update(Pickler=pickler)
    torch.save(found, buffer, pickle_module=writer)
    return buffer.getvalue(), sorted(name for name in modules if name in sys.modules)


def _fingerprint(content: bytes) -> str:
    """A digest of what a pickle holds: of all texts, and of all other values behind their texts.

    The order of sets, and which equal texts are one object, do not count.
    """
    texts: set[str] = set()
    values: list[str] = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            if name.endswith("/data.pkl"):
                memo: dict[Any, Any] = {}
                token: Any = None
                key = ""
                for opcode, value, _ in pickletools.genops(archive.read(name)):
                    if opcode.name.endswith("PUT"):
                        memo[value] = token
                        continue
                    token = memo.get(value) if opcode.name.endswith("GET") else value
                    if isinstance(token, str):
                        key = "" if _GPU.fullmatch(token) else token
                        texts.add(key)
                    elif token is not None or opcode.name in _CONSTANTS:
                        values.append(f"{key} {opcode.name} {token!r}")
            elif "/data/" in name:
                values.append(sha256(archive.read(name)).hexdigest())
    return digest_of(repr((sorted(texts), sorted(values))).encode())


def _names_in_annotations(objects: Mapping[str, Any]) -> dict[str, Any]:
    """What the annotations of classes of ``__main__`` name, where they are texts."""
    main = vars(sys.modules[MAIN])
    return {name: main[name] for cls in _classes(objects) for name in _words(cls) if name in main}


def _classes(objects: Mapping[str, Any]) -> Iterator[type[Any]]:
    for found in objects.values():
        if isinstance(found, type):
            yield from (cls for cls in found.__mro__ if cls.__module__ == MAIN)


def _words(cls: type[Any]) -> Iterator[str]:
    for hint in vars(cls).get("__annotations__", {}).values():
        if isinstance(hint, str):
            yield from re.findall(r"[^\W\d]\w*", hint)
