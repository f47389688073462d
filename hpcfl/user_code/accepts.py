"""What a job may name by a dotted path: checked before anything that the job names is called.

A job may come from anyone, and what its paths name is called with its keys.  So each such key says
what it accepts, and ``hpcfl.user_code.names.find_object`` is the only way to it.  Accepted are
classes with a stated base, and, where the key takes functions, the user's own and those that the
key lists; never what Python's library defines, by whatever path.

"The user's own" is what a file defines that is no part of an installed package: on PYTHONPATH, or
installed in place (``pip install -e``); and a package that requires hpcfl.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from re import match
from typing import Any

from hpcfl.errors import is_of_user


class NotAcceptedError(ValueError):
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
    """Of its classes; one of several."""
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
            NotAcceptedError: its first part is Python's, or an installed package of others.
        """
        first = name.partition(".")[0]
        if first in sys.stdlib_module_names:
            raise NotAcceptedError(
                f"found {name!r:.200}, of Python's own library; expected {self.expected}"
            )
        allowed = {package.partition(".")[0] for package in self.packages}
        if first not in {"hpcfl", *allowed} and not _is_own(first):
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


def _is_own(module: str) -> bool:
    """Whether a module is the user's own, imported or not."""
    first = module.partition(".")[0]
    if first in sys.stdlib_module_names and first != "__main__":
        return False
    loaded = sys.modules.get(first)
    spec = getattr(loaded, "__spec__", None) or (find_spec(first) if loaded is None else None)
    if spec is None:  # made in memory, or missing: the import says so
        return True
    places = [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
    return all(is_of_user(Path(place)) for place in places) or _requires_hpcfl(first)


@cache  # to look through what is installed takes most of a second
def _requires_hpcfl(package: str) -> bool:
    """Whether an installed package is made for hpcfl."""
    return any(
        match(r"(?i)hpcfl(?![\w.-])", need) and "extra ==" not in need
        for name in packages_distributions().get(package, ())
        for need in distribution(name).requires or ()
    )
