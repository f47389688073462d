"""Take the record of a run, as ``hpcfl export --record`` writes it, as a job.

The record's folder ``code`` is where Python looks first for the modules of the user's own classes.
"""

import sys
from os.path import isfile, lexists
from pathlib import Path

from hpcfl.errors import JobError
from hpcfl.runs.job_file.yaml_file import JobFile, parse_resolved, resolved_content

CODE = "code"
"""The folder of a record with the source of the user's own classes."""


def is_record(folder: Path) -> bool:
    """Whether a folder is a record: a run has its initial model before its first history.

    A run that has lost it has checkpoints; a record has none, even where a start was refused in it.
    """
    # Not Path.is_file, which raises an error where a folder may not be read.
    has_both = all(map(isfile, (folder / "job.yaml", folder / "history.jsonl")))
    models = (folder / "initial.npy", *(folder / "checkpoints").glob("*"))
    return has_both and not any(map(lexists, models))


def read_record(folder: Path) -> JobFile:
    """Read the job of a record, and let its code be found.

    Raises:
        JobError: it is the record of a branch, or its job is no YAML mapping.
        StoreError: its job was changed.
    """
    if lexists(folder / "branches.json"):
        raise JobError(
            f"{folder}: is the record of a branch, whose settings changed between rounds; expected "
            "that of a run from its start"
        )
    job = folder / "job.yaml"
    file = parse_resolved(job, resolved_content(job))
    file.name = str(folder)
    if isinstance(store := file.tree.get("store"), dict):
        store.pop("dir", None)  # a disk of another machine
    code = folder.absolute() / CODE
    if code.is_dir() and str(code) not in sys.path:
        sys.path.insert(0, str(code))
    return file
