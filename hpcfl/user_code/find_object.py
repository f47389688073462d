"""Find a class, a function or an object by its name: ``module.NAME``, or ``FILE.pkl:NAME``."""

import io
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from errno import EPERM
from importlib import import_module
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any, NamedTuple

import torch

from hpcfl.errors import StoreError, file_error, one_line
from hpcfl.io.regular import read
from hpcfl.user_code.accepts import Accepts
from hpcfl.user_code.names import digest_of, is_in_file, require_kept

MAIN = "__main__"
_KEPT_MODULE = "hpcfl_kept_"  # begins the name of the module of classes in a kept file
_FILES = 4  # whose objects are held in memory
_HELD: dict[str, Mapping[str, Any]] = {}


class Content(NamedTuple):
    """What a kept file holds."""

    objects: dict[str, Any]
    """By name: classes, functions, modules of torch."""
    names: dict[str, Any]
    """What texts in the classes' annotations name."""
    modules: list[str]
    """Those of what is named and not kept."""


def read_kept(path: Path) -> bytes:
    """The content of a kept file that will be executed.

    Raises:
        StoreError: it is missing, was changed, is another user's, or is no file that a run keeps.
    """
    try:
        require_kept(str(path))
    except ValueError as e:
        raise StoreError(f"{path}: {e}") from e
    try:
        content = read(path, own=True)
    except OSError as e:
        cure = "put it back, the run needs it"
        if e.errno == EPERM:
            cure = "it would be executed: copy the run's directory (cp -r) if you trust that user"
        message = f"{path}: cannot be read: {e.strerror or e}; {cure}"
        raise file_error(e, message, StoreError) from e
    if digest_of(content) != path.stem.rpartition("-")[2]:
        raise StoreError(f"{path}: was changed: its digest is not that in its name; put it back")
    return content


def find_object(name: str, accepts: Accepts) -> Any:
    """Import what a name says.

    Args:
        name: a dotted path, or ``FILE.pkl:NAME`` of a file that a run keeps.
        accepts: what the key takes that has the name.

    Raises:
        NotAcceptedError: the path names something else.
        StoreError: see ``read_kept``.
        Exception: whatever the import raises.
    """
    if is_in_file(name):
        file, _, attribute = name.rpartition(":")
        found = load_objects(Path(file))
        if attribute not in found:
            raise StoreError(f"{file}: holds {', '.join(found)}, and no {attribute}")
        accepts.require_kind(attribute, found[attribute])
        return found[attribute]
    accepts.require_importable(name)
    module, _, attribute = name.rpartition(".")
    found = getattr(import_module(module), attribute)
    accepts.require(name, found)
    return found


def import_advice(error: BaseException, name: str, folder: Path = Path()) -> str:
    """What to do where ``find_object(name)`` raised, for the end of a message; "" if unknown.

    Args:
        error: that it raised.
        name: the dotted path.
        folder: of the job file that names it.
    """
    first = name.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == first:
        if folder != Path() and any(map(os.path.exists, (folder / f"{first}.py", folder / first))):
            return f"; set PYTHONPATH={quote(str(folder))}, the directory of the job"
        return "; set PYTHONPATH=. if it is in the current directory"
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        known = [key for key in vars(error.obj) if not key.startswith("_")]
        # Of another case, or nearly so.
        asked = str(error.name)
        alike = [key for key in known if key.lower() == asked.lower()]
        alike += get_close_matches(asked, known, n=1)
        return f"; did you mean {alike[0]}?" if alike else ""
    return _first_cause(error)


def _first_cause(error: BaseException) -> str:
    """The error by which an import failed first, for the end of a message.

    transformers, which imports its parts when they are asked for, says of it which part failed.
    """
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    said = "" if first is error else f"; because of {type(first).__name__}: {first}"
    if "operator torchvision::" in str(first):
        said += "; torchvision was built for another torch: install both from one index"
    return said


def load_objects(path: Path) -> Mapping[str, Any]:
    """The objects of a kept file, by name; each file is executed once a process.

    Raises:
        StoreError: it is missing or was changed, or a class that it names cannot be imported.
    """
    if path.name in _HELD and not path.exists():  # the run will write it
        return _HELD[path.name]
    content = read_kept(path)
    if path.name not in _HELD:
        hold_objects(path, content)
    return _HELD[path.name]


def hold_as(name: str, other: str) -> None:
    """Let the objects of a file also be those of another file, which holds equal ones."""
    _HELD[other] = _HELD[name]


def hold_objects(path: Path, content: bytes) -> None:
    """Execute the content of a kept file, which is or will be in ``path``.

    Raises:
        StoreError: a class that it names cannot be imported.
    """
    try:
        found = torch.load(io.BytesIO(content), "cpu", weights_only=False)
        objects, names, modules = Content(**found)
    except (Exception, SystemExit) as e:  # of the modules that it names
        raise StoreError(
            f"{path}: cannot be read: {one_line(f'{type(e).__name__}: {e}')}; the modules of the "
            "objects' classes must be importable (PYTHONPATH), and Python and its packages of the "
            "versions that the run had"
        ) from e
    module = ModuleType(f"{_KEPT_MODULE}{path.stem.replace('-', '_')}")
    vars(module).update(names, __kept_modules__=modules)
    sys.modules[module.__name__] = module  # where texts in annotations are looked up
    for one in objects.values():
        made = {*map(type, one.modules())} if isinstance(one, torch.nn.Module) else {one}
        for part in {part for cls in made for part in getattr(cls, "__mro__", (cls,))}:
            if part.__module__ == MAIN:
                part.__module__ = module.__name__
    while len(_HELD) >= _FILES:
        _HELD.pop(next(iter(_HELD)))
    _HELD[path.name] = objects
