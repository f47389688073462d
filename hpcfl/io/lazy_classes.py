"""Built-in classes by name, whose files are imported when they are asked for."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any


class LazyClasses(Mapping[str, type[Any]]):
    """Classes of a package, one file each.  A run needs one of them.

    Args:
        package: its dotted path.
        classes: the name of each class by that of its file, which is its name in a job.
    """

    def __init__(self, package: str, classes: Mapping[str, str]) -> None:
        self._package, self._classes = package, classes

    def __getitem__(self, name: str) -> type[Any]:
        attribute = self._classes[name]
        found: type[Any] = getattr(import_module(f"{self._package}.{name}"), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)
