"""Write the command that prepares a data set, for messages about files that are not there."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from json import dumps
from pathlib import Path
from shlex import join

from hpcfl.data.base import DataConfig


def prepare_command(data: str, root: str | Path, keys: Mapping[str, object] | None = None) -> str:
    """The command that prepares a data set, quoted for the shell.

    Args:
        data: as ``hpcfl data prepare`` takes it: "emnist split=balanced".
        root: the folder.
        keys: settings of the data set.
    """
    settings = [
        f"{key}={value if isinstance(value, str) else dumps(value)}"
        for key, value in (keys or {}).items()
    ]
    return join(["hpcfl", "data", "prepare", *data.split(), "--root", str(root), *settings])


def changed_keys(section: DataConfig, names: Iterable[str]) -> dict[str, object]:
    """The keys among ``names`` that a section has with values other than the defaults."""
    defaults = {field.name: field.default for field in fields(section)}
    return {
        name: getattr(section, name)
        for name in names
        if name in defaults and getattr(section, name) != defaults[name]
    }
