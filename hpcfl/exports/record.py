"""Copy what a run records about itself, to be kept or published without its checkpoints.

The copy has the job, the history, the log and clients.csv, and ``hpcfl report`` reads it like the
run itself.  It is some hundred bytes a round, whatever the model's size, and cannot be resumed.  It
names no host and no folder: hosts are called host0, host1, ..., an absolute path is cut to its last
part, and messages and notes are left out of the history.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from hpcfl.errors import JobError, file_error
from hpcfl.io.atomic import write_file
from hpcfl.io.files import readable
from hpcfl.job.yaml_file import plain, relative_to_run, write_resolved
from hpcfl.run_dir.branches import Branch, read_branches, write_branches
from hpcfl.run_dir.client_table import table_until
from hpcfl.run_dir.layout import RunDir, history_text
from hpcfl.run_dir.log import LogReader, log_line


def export_record(root: Path, target: Path) -> list[Path]:
    """Write the job, the history, the log, clients.csv and the branches of a run elsewhere.

    The run may be alive: nothing of it is changed or locked.

    Args:
        root: the run directory.
        target: a folder that does not exist yet, or is empty.

    Returns:
        The files written.

    Raises:
        JobError: the directory holds no run, or the folder is not empty, lies in a run or cannot be
            made.
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
        table = table_until(source.clients, int(log[-1]["round"]) if log else 0)
    files = {
        copy.job: write_resolved(_without_folders(job)),
        copy.history: history_text(_without_names(history)),
        copy.log: b"".join(map(log_line, log)),
    }
    if table:
        files[copy.clients] = table
    if branches:
        own = [Branch.parse(_without_folders(branch.entry)) for branch in branches]
        files[copy.branches] = write_branches(own)
    copy.refuse_inside_run()  # a report takes all below a run for its own
    _make_folder(target)
    for path, content in files.items():
        write_file(path, content)
    return list(files)


def _make_folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        found = next(target.iterdir(), None)
    except OSError as e:
        message = f"--record: {target} cannot be made: {e.strerror}; name another folder"
        raise file_error(e, message, JobError) from e
    if found is not None:
        raise JobError(f"--record: {target} holds {found.name} already; name an empty folder")


def _without_names(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The history without texts that may name a host or a folder."""
    hosts: dict[str, str] = {}
    entries = []
    for entry in history:
        kept = _without_folders({key: v for key, v in entry.items() if key != "notes"})
        for rank in kept.get("map") or ():
            rank["host"] = hosts.setdefault(str(rank.get("host")), f"host{len(hosts)}")
        if isinstance(kept.get("outcome"), dict):
            kept["outcome"]["message"] = ""
        entries.append(kept)
    return entries


def _without_folders(value: Any) -> Any:
    """A value in which every text that is an absolute path is its last part."""
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    if isinstance(value, str) and PurePath(value.removeprefix("file://")).is_absolute():
        return PurePath(value).name
    return value
