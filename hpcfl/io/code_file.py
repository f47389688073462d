"""Import a class or a function by its name: ``module.NAME``, or ``FILE.py:NAME``.

Files are those that a run keeps of a script or a notebook (``hpcfl.runner.main_source``).
"""

import sys
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcfl.errors import StoreError, file_error

_MARK = ".py:"
DIGITS = 16
"""Of a digest, in the names of kept files."""


def digest_of(content: bytes) -> str:
    """The digest of a content, as the names of kept files have it."""
    return sha256(content).hexdigest()[:DIGITS]


def is_in_file(name: str) -> bool:
    """Whether the name is of the form ``FILE.py:NAME``."""
    return _MARK in name


def short_name(name: str) -> str:
    """A name for people: of ``FILE.py:NAME`` only NAME."""
    return name.rpartition(":")[2] if is_in_file(name) else name


def find_object(name: str) -> Any:
    """Import what a name says.

    Raises:
        StoreError: the file is missing, or its content is not that of the digest in its name.
        Exception: whatever the import raises.
    """
    if is_in_file(name):
        file, _, attribute = name.rpartition(":")
        return getattr(load_code(Path(file)), attribute)
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def load_code(path: Path) -> ModuleType:
    """The module of a kept file, ``NAME-DIGEST.py``; each content is executed once a process.

    Raises:
        StoreError: the file is missing, or was changed.
    """
    module = sys.modules.get(_module_name(path))
    if module is not None:
        return module
    try:
        content = path.read_bytes()
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror or e}; put it back, the run needs its code"
        raise file_error(e, message, StoreError) from e
    if digest_of(content) != path.stem.rpartition("-")[2]:
        raise StoreError(f"{path}: was changed: its digest is not that in its name; put it back")
    return execute(path, content.decode())


def execute(path: Path, text: str) -> ModuleType:
    """Make the module of the code ``text``, which is or will be in the file ``path``.

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
        exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102  the user's own code
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _module_name(path: Path) -> str:
    return f"hpcfl_{path.stem.replace('-', '_')}"
