"""The source of classes and functions of ``__main__``: a script, or the cells of a notebook.

Another process cannot import them.  A run therefore keeps a file with their text and all that it
uses: imports, other classes and functions of ``__main__``, and constants.
"""

import __future__

import ast
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from hpcfl.errors import JobError
from hpcfl.io.code_file import KEPT_MODULE

MAIN = "__main__"
_CONSTANTS = (int, float, complex, str, bytes, bool, type(None))


def is_of_main(found: Any) -> bool:
    """Whether a class or a function is defined in ``__main__``."""
    return getattr(found, "__module__", None) == MAIN


def require_importable(found: Any, what: str) -> None:
    """Refuse a class or a function that no other process can find by its name.

    Args:
        found: the class or function.
        what: begins the message.

    Raises:
        JobError: it is a lambda, defined within a function, of the code that another run keeps, or
            not what its module has.
    """
    name = found.__qualname__
    refuse_kept(found.__module__, name, what)
    if "<lambda>" in name:
        raise JobError(
            f"{what}: found a lambda, whose source cannot be kept; expected a function or a class: "
            "write `def make_model(): return ...`"
        )
    if "." in name:
        raise JobError(
            f"{what}: {name} is defined within a function or class, where no other process finds "
            "it; define it at the top of a module, the script or the notebook"
        )
    if getattr(sys.modules.get(found.__module__), name, None) is not found:
        raise JobError(
            f"{what}: {found.__module__}.{name} is not what its module has under this name now; "
            "pass the class or function of the module itself"
        )


def refuse_kept(module: str, name: str, what: str) -> None:
    """Refuse a class or function of the code that a run keeps: no other process imports it.

    Raises:
        JobError: the module is such code.
    """
    if module.startswith(KEPT_MODULE):
        raise JobError(
            f"{what}: {name} is of the code that another run keeps, which no other process "
            "imports; define it in a module, the script or the notebook, and load the state_dict"
        )


def source_of(wanted: Sequence[Any], what: str) -> str:
    """The text of a file that defines classes and functions of ``__main__`` and all that they use.

    Args:
        wanted: classes and functions of ``__main__``.
        what: begins the messages.

    Raises:
        JobError: a source is not found, or uses a value that cannot be written.
    """
    return "".join(_Source(what).lines(wanted))


class _Source:
    def __init__(self, what: str) -> None:
        self._what = what
        self._main = sys.modules[MAIN].__dict__
        self._imports: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        self._texts: dict[str, str] = {}  # in an order in which they can be executed
        self._begun: set[str] = set()

    def lines(self, wanted: Sequence[Any]) -> Iterator[str]:
        for found in wanted:
            self._define(found)
        for future in self._futures(wanted):
            yield f"{future}\n"
        yield from sorted(self._imports.values())
        yield from self._constants.values()
        yield from (f"\n\n{text}\n" for text in self._texts.values())

    def _define(self, found: Any) -> None:
        """Add a class or function of ``__main__``, after those that it uses."""
        require_importable(found, self._what)
        name = found.__qualname__
        if name in self._begun:
            return
        self._begun.add(name)
        text = self._text(found)
        for used in _globals_of(text):
            if used != name and used in self._main:
                self._add(used, self._main[used], name)
        self._texts[name] = text

    def _add(self, name: str, value: Any, user: str) -> None:
        """Add what a source calls ``name``."""
        if isinstance(value, ModuleType):
            self._imports[name] = f"import {value.__name__} as {name}\n"
        elif is_of_main(value) and isinstance(value, type | FunctionType):
            if value.__qualname__ != name:
                raise JobError(
                    f"{self._what}: {user} uses {value.__qualname__} by another name, {name}; use "
                    "its own"
                )
            self._define(value)
        elif _is_constant(value):
            self._constants[name] = f"{name} = {value!r}\n"
        elif origin := _importable(name, value):
            self._imports[name] = origin
        else:
            raise JobError(
                f"{self._what}: {user} uses the {type(value).__name__} {name} of this script or "
                "notebook, which cannot be kept; define it within, or put both into a module"
            )

    def _text(self, found: Any) -> str:
        try:
            text = _class_text(found) if isinstance(found, type) else inspect.getsource(found)
        except (OSError, TypeError, SyntaxError):
            text = ""
        if not text:
            raise JobError(
                f"{self._what}: the source of {found.__qualname__} is not found, so the run cannot "
                "keep it; put it into a module"
            )
        return textwrap.dedent(text).rstrip()

    @staticmethod
    def _futures(wanted: Iterable[Any]) -> Iterator[str]:
        """``from __future__`` lines of the code that is kept: they change how it is compiled."""
        codes = [code for found in wanted for code in _codes(found)]
        if any(code.co_flags & __future__.annotations.compiler_flag for code in codes):
            yield "from __future__ import annotations"


def _codes(found: Any) -> Iterator[Any]:
    if isinstance(found, FunctionType):
        yield found.__code__
    else:
        for value in vars(found).values():
            if isinstance(value, FunctionType) and value.__module__ == found.__module__:
                yield value.__code__


def _class_text(cls: type[Any]) -> str:
    """The text of a class; of a notebook's too, whose ``__main__`` has no file.

    A cell is known to ``linecache`` by the file name that the code of the methods has.

    Raises:
        OSError, TypeError, SyntaxError: it is not found.
    """
    files = {code.co_filename for code in _codes(cls) if not code.co_filename.startswith("<string")}
    for file in sorted(files):
        text = "".join(linecache.getlines(file))
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
    return inspect.getsource(cls)


def _globals_of(text: str) -> list[str]:
    """The names that a source takes from around it, in alphabetic order."""
    found: set[str] = set()

    def visit(table: symtable.SymbolTable, *, top: bool) -> None:
        for symbol in table.get_symbols():
            taken = not symbol.is_assigned() if top else symbol.is_global()
            if symbol.is_referenced() and taken:
                found.add(symbol.get_name())
        for below in table.get_children():
            visit(below, top=False)

    visit(symtable.symtable(text, "<kept>", "exec"), top=True)
    return sorted(found)


def _is_constant(value: Any) -> bool:
    """Whether ``repr`` writes the value."""
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_constant, value))
    if type(value) is dict:
        return all(_is_constant(part) for pair in value.items() for part in pair)
    if type(value) is float:
        return bool(np.isfinite(value))
    return type(value) in _CONSTANTS


def _importable(name: str, value: Any) -> str | None:
    """The line that imports a value of another module; None if there is none."""
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(own, str) and _holds(module, own, value):
        return f"from {module} import {own} as {name}\n"
    # Aliases of types, such as those of hpcfl.types, do not know their module.
    homes = [home for home in [*sys.modules] if home != MAIN and _holds(home, name, value)]
    home = min(homes, key=lambda home: ("._" in f".{home}", home.count("."), home), default=None)
    return f"from {home} import {name}\n" if home else None


def _holds(module: str, name: str, value: Any) -> bool:
    """Whether an imported module has this value under the name."""
    return getattr(sys.modules.get(module), "__dict__", {}).get(name) is value
