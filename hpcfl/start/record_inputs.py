"""The inputs of a job that its record has not: data, files of partitions, initial weights."""

from collections.abc import Mapping
from os.path import lexists
from pathlib import Path
from typing import Any

from hpcfl.errors import JobError
from hpcfl.models.base import TORCHVISION
from hpcfl.runs.job_file.resume_rules import input_places
from hpcfl.runs.job_file.settings import flatten
from hpcfl.user_code.names import kept_name


def named_inputs(tree: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a job that say where its inputs are, and the paths.

    What is downloaded is not among them, nor what the run keeps.
    """
    places = input_places(flatten(tree))
    if tree["data"].get("download"):
        places.pop("data.root", None)
    if (init := tree["model"].get("init")) not in (None, TORCHVISION):
        places["model.init"] = init
    return {key: path for key, path in places.items() if kept_name(path) is None}


def require_inputs(folder: Path, tree: Mapping[str, Any]) -> None:
    """Refuse to run a record whose data are not found: a record has none, and no path to them.

    Args:
        folder: the record.
        tree: of its job, with the overrides.

    Raises:
        JobError: a path is missing; the line says how to give all that are.
    """
    places = named_inputs(tree)
    missing = {key: path for key, path in places.items() if not lexists(path)}
    if missing:
        found = ", ".join(f"{key} {path}" for key, path in missing.items())
        raise JobError(
            f"{folder}: {found}: not found here, as a record has neither data nor paths; add "
            f"{' '.join(f'{key}=PATH' for key in missing)}"
        )
