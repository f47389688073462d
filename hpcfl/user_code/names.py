"""Names of what no job file can hold: files that a run keeps, and the objects in them.

A job names such an object by ``FILE.pkl:NAME``, another class or function by ``module.NAME``
(``hpcfl.user_code.find_object``).  A file is executed only if it is one that a run keeps: in a
folder ``kept``, under a name that has the digest of its content.  So a job file alone cannot make
hpcfl execute another file.
"""

import re
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

KEPT = "kept"
"""The folder of a run directory with what no job file can hold: hpcfl.start.objects."""
OBJECTS = ".pkl"
"""The ending of a file with objects, and with classes and functions of ``__main__``."""
_MARKS = (f"{OBJECTS}:", ".py:")
DIGITS = 16
"""Letters of a digest in the names of kept files."""
_NAME = re.compile(
    rf"(data|model)-[0-9a-f]{{{DIGITS}}}\.(npz|safetensors)"
    rf"|objects-[0-9a-f]{{{DIGITS}}}-[0-9a-f]{{{DIGITS}}}\{OBJECTS}"
)


class KeptName(NamedTuple):
    """What a job names of a kept file."""

    path: Path
    """The file."""
    attribute: str
    """The part ":NAME" of ``FILE.pkl:NAME``; else empty."""


def digest_of(content: bytes) -> str:
    """The digest of a content, as the names of kept files have it."""
    return sha256(content).hexdigest()[:DIGITS]


def is_kept_name(name: str) -> bool:
    """Whether a file has a name as a run gives it to a file that it keeps."""
    return _NAME.fullmatch(name) is not None


def kept_name(name: str) -> KeptName | None:
    """The kept file of a path, or of ``FILE.pkl:NAME``; None if no run gave it such a name."""
    file, colon, attribute = name.rpartition(":") if is_in_file(name) else (name, "", "")
    path = Path(file)
    return KeptName(path, colon + attribute) if _is_kept(path) else None


def require_kept(name: str) -> None:
    """Refuse to execute a file that no run keeps.

    Args:
        name: the path of the file, or ``FILE.pkl:NAME``.

    Raises:
        ValueError: its folder is not ``kept``, or its name has no digest.
    """
    if kept_name(name) is None:
        raise ValueError(
            f"found {name!r:.200}, a file that would be executed; expected the dotted path of a "
            f"class in a module, or a file that a run keeps in its folder {KEPT}, {OBJECTS}:NAME "
            "(earlier versions kept others: start the run again)"
        )


def _is_kept(path: Path) -> bool:
    return path.parent.name == KEPT and is_kept_name(path.name)


def is_in_file(name: str) -> bool:
    """Whether the name is of the form ``FILE.pkl:NAME``, or ``FILE.py:NAME`` of old jobs."""
    return any(mark in name for mark in _MARKS)


def short_name(name: str) -> str:
    """A name for people: of ``FILE.pkl:NAME`` only NAME."""
    return name.rpartition(":")[2] if is_in_file(name) else name
