"""Import a class or a function by its name: ``module.NAME``, or ``FILE.py:NAME``.

A file is executed only if it is one that a run keeps: in a folder ``kept``, under a name that has
the digest of its content.  So a job file alone cannot make hpcfl execute another file.
"""

import __future__

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from shlex import quote
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from hpcfl.errors import StoreError, file_error
from hpcfl.io.regular import read

KEPT = "kept"
"""The folder of a run directory with what no job file can hold: hpcfl.runner.objects."""
KEPT_MODULE = "hpcfl_kept_"
"""Begins the name of the module of a kept file of code."""
_MARK = ".py:"
DIGITS = 16
"""Of a digest, in the names of kept files."""
_NAME = re.compile(rf"(data|model|code)-[0-9a-f]{{{DIGITS}}}\.(npz|pt|safetensors|py)")


class KeptName(NamedTuple):
    """What a job names of a kept file."""

    path: Path
    """The file."""
    attribute: str
    """Of ``FILE.py:NAME``, ":NAME"; else empty."""


class Origin(NamedTuple):
    """Where a part of kept code comes from, which error messages name in the same process."""

    first: int
    """Its first line in the kept code."""
    last: int
    file: str
    """The script, or the cell of a notebook."""
    line: int
    """Of the file, where the part begins."""


def digest_of(content: bytes) -> str:
    """The digest of a content, as the names of kept files have it."""
    return sha256(content).hexdigest()[:DIGITS]


def is_kept_name(name: str) -> bool:
    """Whether a file has a name as a run gives it to a file that it keeps."""
    return _NAME.fullmatch(name) is not None


def kept_name(name: str) -> KeptName | None:
    """The kept file of a path, or of ``FILE.py:NAME``; None if no run gave it such a name."""
    file, colon, attribute = name.rpartition(":") if is_in_file(name) else (name, "", "")
    path = Path(file)
    return KeptName(path, colon + attribute) if _is_kept(path) else None


def require_kept(name: str) -> None:
    """Refuse to execute a file that no run keeps.

    Args:
        name: the path of the file, or ``FILE.py:NAME``.

    Raises:
        ValueError: its folder is not ``kept``, or its name has no digest.
    """
    if kept_name(name) is None:
        raise ValueError(
            f"found {name!r:.200}, a file that would be executed; expected the dotted path of a "
            f"class in a module, or a file that a run keeps in its folder {KEPT}"
        )


def _is_kept(path: Path) -> bool:
    return path.parent.name == KEPT and is_kept_name(path.name)


def read_kept(path: Path) -> bytes:
    """The content of a kept file that will be executed, ``NAME-DIGEST.py`` or ``.pt``.

    Raises:
        StoreError: it is missing, was changed, or is no file that a run keeps.
    """
    try:
        require_kept(str(path))
    except ValueError as e:
        raise StoreError(f"{path}: {e}") from e
    try:
        content = read(path)
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror or e}; put it back, the run needs it"
        raise file_error(e, message, StoreError) from e
    if digest_of(content) != path.stem.rpartition("-")[2]:
        raise StoreError(f"{path}: was changed: its digest is not that in its name; put it back")
    return content


def is_in_file(name: str) -> bool:
    """Whether the name is of the form ``FILE.py:NAME``."""
    return _MARK in name


def short_name(name: str) -> str:
    """A name for people: of ``FILE.py:NAME`` only NAME."""
    return name.rpartition(":")[2] if is_in_file(name) else name


def find_object(name: str) -> Any:
    """Import what a name says.

    Raises:
        StoreError: see ``read_kept``.
        Exception: whatever the import raises.
    """
    if is_in_file(name):
        file, _, attribute = name.rpartition(":")
        return getattr(load_code(Path(file)), attribute)
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def import_advice(error: Exception, name: str, folder: Path = Path()) -> str:
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
    return ""


def load_code(path: Path) -> ModuleType:
    """The module of a kept file, ``NAME-DIGEST.py``; each content is executed once a process.

    Raises:
        StoreError: see ``read_kept``.
    """
    module = sys.modules.get(_module_name(path))
    if module is not None:
        return module
    return execute(path, read_kept(path).decode())


def execute(path: Path, text: str, origins: Sequence[Origin] = ()) -> ModuleType:
    """Make the module of the code ``text``, which is or will be in the file ``path``.

    Args:
        path: the file.
        text: the code.
        origins: where parts of it come from.

    Raises:
        Exception: whatever the code raises.
    """
    name = _module_name(path)
    if name in sys.modules:  # the same content, as the name has its digest
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        for code in _compiled(path, text, origins):
            exec(code, module.__dict__)  # noqa: S102  the user's own code
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _compiled(path: Path, text: str, origins: Sequence[Origin]) -> Iterator[CodeType]:
    """The code of each statement, with the lines of the file that it comes from."""
    tree = ast.parse(text, str(path))
    futures = (n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__")
    flags = 0
    for name in (alias.name for node in futures for alias in node.names):
        flags |= getattr(__future__, name).compiler_flag
    for node in tree.body:
        origin = next((o for o in origins if o.first <= node.lineno <= o.last), None)
        if origin:
            ast.increment_lineno(node, origin.line - origin.first)
        file = origin.file if origin else str(path)
        yield compile(ast.Module([node], []), file, "exec", flags, dont_inherit=True)


def _module_name(path: Path) -> str:
    return f"{KEPT_MODULE}{path.stem.replace('-', '_')}"
