"""The source of classes and functions of ``__main__``: a script, or the cells of a notebook.

Another process cannot import them.  A run therefore keeps a file with their text and all that it
uses: imports, other classes and functions of ``__main__``, and constants.
"""

import __future__

import ast
import dis
import inspect
import linecache
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from hpcfl.errors import JobError, is_of_user
from hpcfl.io.code_file import KEPT_MODULE, Origin

MAIN = "__main__"
_NUMPY = "_numpy"  # as kept code imports it, where it has a number of numpy
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


class KeptSource(NamedTuple):
    """Code that a run keeps."""

    text: str
    origins: tuple[Origin, ...]
    """Where its classes and functions come from."""


class _Definition(NamedTuple):
    """The text of a class or a function, and where it begins."""

    text: str
    file: str
    line: int


def source_of(wanted: Sequence[Any], what: str) -> KeptSource:
    """The text of a file that defines classes and functions of ``__main__`` and all that they use.

    Args:
        wanted: classes and functions of ``__main__``.
        what: begins the messages.

    Raises:
        JobError: a source is not found, or uses a value that cannot be written.
    """
    return _Source(what).whole(wanted)


class _Source:
    def __init__(self, what: str) -> None:
        self._what = what
        self._main = sys.modules[MAIN].__dict__
        self._imports: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        # In an order in which they can be executed.
        self._definitions: dict[str, _Definition] = {}
        self._begun: set[str] = set()

    def whole(self, wanted: Sequence[Any]) -> KeptSource:
        for found in wanted:
            self._define(found)
        futures = [f"{future}\n" for future in self._futures(wanted)]
        text = "".join([*futures, *sorted(self._imports.values()), *self._constants.values()])
        origins = []
        for own, file, line in self._definitions.values():
            text += "\n\n"
            first = 1 + text.count("\n")
            origins.append(Origin(first, first + own.count("\n"), file, line))
            text += f"{own}\n"
        return KeptSource(text, tuple(origins))

    def _define(self, found: Any) -> None:
        """Add a class or function of ``__main__``, after those that it uses."""
        require_importable(found, self._what)
        name = found.__qualname__
        if name in self._begun:
            return
        self._begun.add(name)
        definition = self._definition(found)
        text = definition.text
        if isinstance(found, type) and name in _bases_of(text):
            raise JobError(
                f"{self._what}: {name} is derived from an earlier class of the same name, which "
                "the run cannot keep beside it; give one of them another name"
            )
        for used in _globals_of(text):
            if used != name and used in self._main:
                self._add(used, self._main[used], name)
        for module in _submodules(text, self._main):
            self._imports[module] = f"import {module} as _submodule\n"
        self._definitions[name] = definition

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
        elif (written := _literal(value)) is not None:
            self._constants[name] = f"{name} = {written}\n"
            if isinstance(value, np.generic):
                self._imports[_NUMPY] = f"import numpy as {_NUMPY}\n"
        elif origin := _importable(name, value):
            self._imports[name] = origin
        else:
            raise JobError(
                f"{self._what}: {user} uses the {type(value).__name__} {name} of this script or "
                "notebook, which cannot be kept; define it within, or put both into a module"
            )

    def _definition(self, found: Any) -> _Definition:
        try:
            text, file, line = _of_class(found) if isinstance(found, type) else _of_function(found)
        except (OSError, TypeError, SyntaxError):
            text = ""
        if not text:
            raise JobError(
                f"{self._what}: the source of {found.__qualname__} is not found, so the run cannot "
                "keep it; put it into a module"
            )
        # Of a definition within an `if`; another indentation would change texts of several lines.
        if text[0].isspace():
            text, line = f"if True:\n{text}", line - 1
        return _Definition(text.rstrip(), file, line)

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
                yield inspect.unwrap(value).__code__  # not that of a decorator


def _of_function(function: Any) -> _Definition:
    """The text of a function.

    Raises:
        OSError, TypeError, SyntaxError: it is not found.
    """
    lines, first = inspect.getsourcelines(function)
    return _Definition("".join(lines), inspect.unwrap(function).__code__.co_filename, first)


def _of_class(cls: type[Any]) -> _Definition:
    """The text of a class; of a notebook's too, whose ``__main__`` has no file.

    A cell is known to ``linecache`` by the file name that the code of the methods has.  Of several
    classes of the name it is the one with these methods, else the last of the newest cell.

    Raises:
        OSError, TypeError, SyntaxError: it is not found.
    """
    places = [
        (code.co_filename, code.co_firstlineno)
        for code in _codes(cls)
        if not code.co_filename.startswith("<string")  # of a dataclass or a named tuple
    ]
    for file in sorted({file for file, _ in places}) or _cells():
        text = "".join(linecache.getlines(file))
        with suppress(SyntaxError):
            body = ast.parse(text).body
            named = [n for n in body if isinstance(n, ast.ClassDef) and n.name == cls.__name__]
            lines = [line for own, line in places if own == file]
            holding = [n for n in named if any(line in _lines_of(n) for line in lines)]
            for node in reversed(holding or named):
                own = _lines_of(node)
                found = text.splitlines(keepends=True)[own.start - 1 : own.stop - 1]
                return _Definition("".join(found), file, own.start)
    lines, first = inspect.getsourcelines(cls)
    return _Definition("".join(lines), inspect.getfile(cls), first)


def _lines_of(node: ast.ClassDef) -> range:
    """The numbers of the lines of a class, with its decorators."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _cells() -> list[str]:
    """The script, or what ``linecache`` knows and no module has been imported from: the cells."""
    script = getattr(sys.modules[MAIN], "__file__", None)
    if script:
        return [script]
    imported = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    return [file for file in reversed([*linecache.cache]) if file not in imported]


def require_same(module: ModuleType, what: str) -> None:
    """Refuse kept code whose classes and functions are not those of ``__main__`` now.

    They differ where a method was replaced or added after the class, a name was defined again, or
    the file was edited meanwhile.

    Args:
        module: made of the kept code.
        what: begins the message.

    Raises:
        JobError: one differs.
    """
    main = sys.modules[MAIN]
    for name, kept in vars(module).items():
        own = isinstance(kept, type | FunctionType) and kept.__module__ == module.__name__
        if own and (part := _differing(getattr(main, name), kept)):
            raise JobError(
                f"{what}: {part} is not as the source of {name} says: it was changed after its "
                "definition, or the file was edited; write the change into the definition, and "
                "execute it again"
            )


def _differing(found: Any, kept: Any) -> str | None:
    """The name of the first part of a class or function that differs; None if none does."""
    if isinstance(found, type) != isinstance(kept, type):
        return str(found.__qualname__)
    if not isinstance(found, type):
        return None if _content(found) == _content(kept) else str(found.__qualname__)
    first, second = (
        {
            key: _content(value)
            for key, value in vars(cls).items()
            if not _made_by_python(key, value)
        }
        for cls in (found, kept)
    )
    for key in {**first, **second}:
        if first.get(key) != second.get(key):
            return f"{found.__qualname__}.{key}"
    return None


def _made_by_python(key: str, value: Any) -> bool:
    """Whether an attribute of a class describes it, such as ``__module__`` and ``__doc__``."""
    return key.startswith("__") and not isinstance(value, FunctionType)


def _content(value: Any) -> object:
    """What is compared of a function, or of an attribute of a class; "" for other values."""
    if isinstance(value, property):
        return [_content(part) for part in (value.fget, value.fset, value.fdel)]
    value = getattr(value, "__func__", value)  # of a static method or a class method
    if isinstance(value, FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [_instructions(value.__code__), *map(_content, defaults)]
    return _literal(value) or ""


# What a call of a module's function is compiled to depends on whether the file imports the module.
_OF_CALLS = ("PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG")


def _instructions(code: CodeType) -> list[object]:
    """The instructions of a function, without the lines that they are from."""
    found: list[object] = []
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in _OF_CALLS:
            continue
        if isinstance(value, CodeType):
            value = _instructions(value)
        elif instruction.opcode in (*dis.hasjrel, *dis.hasjabs):
            value = None  # the distance of a jump, which calls make longer
        found.append((name.replace("METHOD", "ATTR"), repr(value)))
    return found


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


def _bases_of(text: str) -> set[str]:
    """The names from which the class of a source is derived."""
    found = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    return {base.id for base in found.bases if isinstance(base, ast.Name)}


def _submodules(text: str, names: Mapping[str, Any]) -> Iterator[str]:
    """The modules that a source names within modules, such as ``xml.dom`` by ``xml``.

    They are imported, too: another process may not have imported them.
    """
    for node in ast.walk(ast.parse(text)):
        parts: list[str] = []
        inner: ast.expr | ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        module = names.get(inner.id) if isinstance(inner, ast.Name) else None
        if isinstance(module, ModuleType) and parts:
            name = ".".join([module.__name__, *parts])
            if isinstance(sys.modules.get(name), ModuleType):
                yield name


def _literal(value: Any) -> str | None:
    """The expression that makes a constant, or a number of numpy; None for other values."""
    if _is_constant(value):
        return repr(value)
    # Not as a number of Python, which a tensor takes in another way.
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.itemsize <= 8:
        item = value.item()
        if np.isfinite(item):
            return f"{_NUMPY}.dtype({value.dtype.str!r}).type({item!r})"
    return None


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
    if (
        isinstance(module, str)
        and isinstance(own, str)
        and _holds(module, own, value)
        and _is_importable(module)
    ):
        return f"from {module} import {own} as {name}\n"
    # Aliases of types, such as those of hpcfl.types, do not know their module.
    homes = [home for home in [*sys.modules] if _is_importable(home) and _holds(home, name, value)]
    home = min(homes, key=_preference, default=None)
    return f"from {home} import {name}\n" if home else None


def _preference(module: str) -> tuple[bool, bool, int, str]:
    """The order of modules that hold the same value: those that are installed and public first."""
    file = getattr(sys.modules[module], "__file__", None)
    own = file is not None and is_of_user(Path(file))
    return own, "._" in f".{module}", module.count("."), module


def _is_importable(module: str) -> bool:
    """Whether another process finds the module: not ``__main__``, nor the code that a run keeps.

    ``multiprocessing`` gives ``__main__`` a second name.
    """
    return sys.modules[module] is not sys.modules[MAIN] and not module.startswith(KEPT_MODULE)


def _holds(module: str, name: str, value: Any) -> bool:
    """Whether an imported module has this value under the name."""
    return getattr(sys.modules.get(module), "__dict__", {}).get(name) is value
