"""Copy what a run records about itself, to be kept or published without its checkpoints.

The copy has the job, the history and the log, and ``hpcfl report`` reads it like the run itself.
It is some hundred bytes a round, whatever the model's size, and cannot be resumed.  Names of
machines and folders are left out: hosts are called host0, host1, ..., and an absolute path is cut
to its last part.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcfl.errors import JobError, file_error
from hpcfl.io.atomic import write_file
from hpcfl.io.files import present, readable
from hpcfl.job.yaml_file import plain, relative_to_run, write_resolved
from hpcfl.run_dir.branches import Branch, read_branches, write_branches
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import LogReader, log_line

# The folders of an absolute path in a text; a slash between words ("rounds/s") begins none.
_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s/:;,'\"]+/)*(?=[^\s/])")


def export_record(root: Path, target: Path) -> list[Path]:
    """Write the job, the history, the log and the branches of a run into another folder.

    The run may be alive: nothing of it is changed or locked.

    Args:
        root: the run directory.
        target: a folder that does not exist yet, or is empty.

    Returns:
        The files written.

    Raises:
        JobError: the directory holds no run, or the folder is not empty or cannot be made.
        StoreError: a file of the run is damaged.
        DiskError: a file cannot be written.
    """
    source, copy = RunDir(root), RunDir(target)
    with readable(root):
        source.require()
        job = plain(relative_to_run(source.read_job().tree, root))
        history = source.history_entries()
        log = LogReader(source.log).read()
        branches = read_branches(source.branches)
    _make_folder(target)
    names = _aliases(history)
    write_file(copy.job, write_resolved(_without_names(job, names)))
    copy.write_history(_without_names(history, names))
    write_file(copy.log, b"".join(map(log_line, log)))
    if branches:
        own = [Branch.parse(_without_names(branch.entry, names)) for branch in branches]
        write_file(copy.branches, write_branches(own))
    return [path for path in (copy.job, copy.history, copy.log, copy.branches) if present(path)]


def _make_folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        found = next(target.iterdir(), None)
    except OSError as e:
        message = f"--record: {target} cannot be made: {e.strerror}; name another folder"
        raise file_error(e, message, JobError) from e
    if found is not None:
        raise JobError(f"--record: {target} holds {found.name} already; name an empty folder")


def _aliases(history: list[dict[str, Any]]) -> dict[str, str]:
    """Other names for the hosts of a history, in order of appearance."""
    ranks = (rank for entry in history for rank in entry.get("map") or ())
    hosts = (rank["host"] for rank in ranks if isinstance(rank, Mapping) and "host" in rank)
    return {host: f"host{index}" for index, host in enumerate(dict.fromkeys(map(str, hosts)))}


def _without_names(value: Any, names: Mapping[str, str]) -> Any:
    """A value with other names for hosts, and without the folders of absolute paths in texts."""
    if isinstance(value, Mapping):
        return {key: _without_names(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_names(item, names) for item in value]
    if not isinstance(value, str):
        return value
    for host, name in names.items():
        value = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w.-])", name, value)
    return _FOLDERS.sub("", value)
