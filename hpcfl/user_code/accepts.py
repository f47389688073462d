"""What a job may name by a dotted path: checked before anything that the job names is called.

A job may come from anyone, and what its paths name is called with its keys.  So each such key says
what it accepts, and ``find_object`` of ``hpcfl.user_code.find_object`` is the only way to it.
Accepted are classes with a stated base, and, where the key takes functions, the user's own and
those that the key lists; never what Python's library defines, by whatever path.

"The user's own" is what a file defines that is no part of an installed package: on PYTHONPATH, or
installed in place (``pip install -e``); and a package that is made for hpcfl.  A package is
installed wherever pip put it: a folder of ``pip install --target`` on PYTHONPATH, too.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from re import match
from typing import Any

from hpcfl.errors import JobError, is_of_user
from hpcfl.io.packages import pip_lists


class NotAcceptedError(JobError):
    """A dotted path names what its key does not accept.

    Args:
        message: what was found, and what is expected.
        found: what the path names; None if it was not imported.
    """

    def __init__(self, message: str, found: Any = None) -> None:
        super().__init__(message)
        self.found = found


@dataclass(frozen=True, kw_only=True)
class Accepts:
    """What a key accepts."""

    expected: str
    """For messages: "a class derived from hpcfl.Callback"."""
    base: type[Any] | tuple[type[Any], ...]
    """The base of its classes, or several, one of which it has."""
    packages: tuple[str, ...] = ()
    """Packages, or parts of one, whose classes it accepts beside the user's own and hpcfl's."""
    functions: bool = False
    """Whether it accepts functions of the user's own, and classes and objects that are called as
    one."""
    listed: Callable[[Any], bool] = lambda _: False
    """Whether it accepts a function of one of the packages."""

    def require_importable(self, name: str) -> None:
        """Refuse a path before its module is imported.

        Args:
            name: the dotted path.

        Raises:
            NotAcceptedError: it is Python's, of an installed package that the key does not list, or
                of a program.
        """
        first, *rest = name.split(".")
        if first in sys.stdlib_module_names:
            raise NotAcceptedError(
                f"found {name!r:.200}, of Python's own library; expected {self.expected}"
            )
        if "__main__" in rest:  # its import runs it
            raise NotAcceptedError(f"found {name!r:.200}, a program; expected {self.expected}")
        listed = any(f"{name}.".startswith(f"{one}.") for one in ("hpcfl", *self.packages))
        # The import itself says what is missing.
        if not (listed or _spec(first) is None or _is_own(first)):
            raise NotAcceptedError(
                f"found {name!r:.200}, of the installed package {first}; expected {self.expected}, "
                "in a module of your own, which may import it"
            )

    def require(self, name: str, found: Any) -> None:
        """Refuse what a path names, before it is called.

        Raises:
            NotAcceptedError: it is something else than the key accepts.
        """
        module = _defining_module(found)
        if not (self._is_kind(found) and (self.listed(found) or self._is_from(found, module))):
            where = f" of {module}" if callable(found) and not _is_own(module) else ""
            raise NotAcceptedError(
                f"{name} is {found!r:.80}{where}, expected {self.expected}", found
            )

    def require_kind(self, name: str, found: Any) -> None:
        """Refuse what a file names that a run keeps, whose origin is that of the run.

        Raises:
            NotAcceptedError: it is something else than the key accepts.
        """
        if not self._is_kind(found):
            raise NotAcceptedError(f"{name} is {found!r:.80}, expected {self.expected}", found)

    def _is_kind(self, found: Any) -> bool:
        """Whether it is a class with the base; or, of a key that takes functions, called as one."""
        if isinstance(found, type):
            called = any("__call__" in vars(cls) for cls in found.__mro__)
            return issubclass(found, self.base) or (self.functions and called)
        return self.functions and callable(found)

    def _is_from(self, found: Any, module: str) -> bool:
        """Whether what is of this kind comes from where the key says."""
        own = isinstance(found, type) and issubclass(found, self.base)
        known = ("hpcfl", *self.packages) if own or isinstance(found, self.base) else ()
        return any(f"{module}.".startswith(f"{one}.") for one in known) or _is_own(module)


def _defining_module(found: Any) -> str:
    """The module that defines a class or function, or the class of another object."""
    while isinstance(found, partial):
        found = found.func
    return getattr(found, "__module__", None) or type(found).__module__


def is_own(found: Any) -> bool:
    """Whether a class, a function or the class of an object is the user's own."""
    return _is_own(_defining_module(found))


def _is_own(module: str) -> bool:
    """Whether a module that is imported or can be is the user's own."""
    first = module.partition(".")[0]
    if first in sys.stdlib_module_names:
        return False
    if first in sys.modules and getattr(sys.modules[first], "__spec__", None) is None:
        return True  # made in memory: a script, or what a kept file holds
    spec = _spec(first)
    places = [*(spec.submodule_search_locations or ())] if spec else []
    if spec and spec.has_location and spec.origin and not places:
        places = [spec.origin]
    # Without a place it is missing, or a part of the interpreter.
    on_path = places and all(_is_on_path(first, Path(place)) for place in places)
    return bool(on_path) or _is_made_for_hpcfl(first)


def _spec(package: str) -> ModuleSpec | None:
    """Where Python finds a module or package; it is not imported."""
    loaded = sys.modules.get(package)
    return getattr(loaded, "__spec__", None) if loaded else find_spec(package)


@cache
def _is_on_path(package: str, place: Path) -> bool:
    """Whether a file or folder of a package is no part of an installation."""
    return is_of_user(place) and not pip_lists(package, place)


@cache  # to look through what is installed takes most of a second
def _is_made_for_hpcfl(package: str) -> bool:
    """Whether an installed package requires hpcfl, or has an entry point for it."""
    found = [distribution(name) for name in packages_distributions().get(package, ())]
    needs = [need for one in found for need in one.requires or () if "extra ==" not in need]
    return any(match(r"(?i)hpcfl(?![\w.-])", need) for need in needs) or any(
        point.group.startswith("hpcfl.") for one in found for point in one.entry_points
    )
