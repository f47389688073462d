"""The files of a run directory, and its lock.

job.yaml        the resolved job; its last line is the checksum of the others
history.jsonl   an object for each start of the run: time, first round, ranks, versions, git commit,
                the settings that a resume may change, those that it changed, and the outcome
                (hpcfl.runs.history); also one where the run was copied from another
log.jsonl       an object for each round; in both files every line ends with its checksum
clients.csv     with evaluate.clients: table, the scores of each client (hpcfl.runs.client_table)
events/         the log for TensorBoard, with callbacks: [tensorboard]
wandb.json      with callbacks: [wandb], the run's id there, and likewise mlflow.json
                (hpcfl.tools.callbacks.tracker); wandb/ and mlruns/ are wandb's and MLflow's own
initial.npy     the initial model (hpcfl.checkpoint.initial); every checkpoint's manifest has its
                checksum
function.json   names and shapes of the model's parameters, and what it makes of a few examples
                (hpcfl.start.components.model_function); every manifest has its checksum, too
branches.json   of a branch: its parents, rounds and changed settings (hpcfl.runs.branches);
                every manifest has its checksum, too
buffers.safetensors  the model's buffers, if it has any (hpcfl.checkpoint.buffers)
kept/           the examples, models and classes that hpcfl.run was given (hpcfl.start.objects)
checkpoints/    hpcfl.runs.manifest and hpcfl.checkpoint.format; the best model is in them
stores/         segments of client states (hpcfl.store)
ranks/SESSION/  the heartbeats of a running session's ranks (hpcfl.io.heartbeat)
lock            locked while a run uses the directory

A start follows no symbolic link below the directory (``hpcfl.runs.names``), and deletes nothing
but what starts of the same run have written: segments by their sessions' ids, which are in the
history, and files of checkpoints and heartbeats by their names.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from hpcfl.errors import REPEAT, JobError, StoreError, file_error
from hpcfl.io import checksum, regular
from hpcfl.io.atomic import PART, make_folder, write_file
from hpcfl.io.files import parse_json, present, read_bytes, readable
from hpcfl.io.heartbeat import are_written
from hpcfl.io.live_files import HeldPath, check_in_place
from hpcfl.io.lock import lock, lock_now, warn_of_no_locks
from hpcfl.runs.job_file.resume_rules import immutable_changes, job_fingerprint
from hpcfl.runs.job_file.settings import changed, flatten
from hpcfl.runs.job_file.yaml_file import (
    LARGEST_FILE,
    JobFile,
    parse_resolved,
    plain,
    relative_to_run,
    resolved_content,
    write_resolved,
)
from hpcfl.runs.manifest import BRANCHES, FUNCTION, INITIAL, committed_folders, require_format
from hpcfl.runs.names import (
    CALLBACKS,
    CLIENTS,
    FILE,
    FOLDER,
    NAMES,
    RUN,
    SWEEP_LOG,
    require_inside,
    require_kind,
)
from hpcfl.user_code.names import KEPT, is_kept_name


class RunDir:
    """The paths of one run directory; a context manager that releases the lock at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.job = root / "job.yaml"
        self.history = root / "history.jsonl"
        self.log = root / "log.jsonl"
        self.clients = root / CLIENTS
        self.initial = root / INITIAL
        self.function = root / FUNCTION
        self.buffers = root / "buffers.safetensors"
        self.branches = root / BRANCHES
        self.checkpoints = root / "checkpoints"
        self.stores = root / "stores"
        self.kept = root / KEPT
        self.ranks = root / "ranks"
        self.lock_file = root / "lock"
        self._lock: int | None = None  # the descriptor of the locked file
        # What was read or written under the lock, which keeps other processes from changing it.
        self._job: bytes | None = None
        self._history: list[dict[str, Any]] | None = None
        self.history_note: str | None = None
        """What a start left out of the history, for its user; None if nothing."""
        self._held_paths: list[HeldPath] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = self._job = self._history = None
        while self._held_paths:
            self._held_paths.pop().close()

    def refuse_foreign(self, *, alone: bool = False) -> None:
        """Refuse a directory in which a start would write through a link, or over others' files.

        Args:
            alone: also refuse all names that are not of a run's files.

        Raises:
            JobError: a name of a run's files is that of a link or of another kind of file, or the
                directory holds such names, but no run.
        """
        with readable(self.root):
            if not self.root.is_dir():
                return
            found = sorted(self.root.iterdir())
            kinds = NAMES[RUN]
            names = {path.name: path for path in found if path.name in kinds}
            own = kinds.keys() - CALLBACKS  # which a copy has not
            other = next((p for p in found if p.name.removesuffix(PART) not in own), None)
            if alone and other is not None:
                raise JobError(f"{other}: is no file of a run's copy; move it elsewhere")
            for name, path in names.items():
                require_kind(path, kinds[name])
                for below in path.rglob("*") if kinds[name] == FOLDER else ():
                    if name in CALLBACKS:
                        require_inside(path, below)
                    else:
                        require_kind(below, FILE, FOLDER)
            if "job.yaml" not in names and not alone:
                self._refuse_without_job(names)

    def _refuse_without_job(self, names: Mapping[str, Path]) -> None:
        """Refuse a directory without job.yaml that holds more than an interrupted start leaves.

        Raises:
            JobError: it does.
        """
        for name, path in names.items():
            if not path.is_dir():
                foreign = path.stat().st_size > 0
            else:
                below = [p.name.removesuffix(PART) for p in path.iterdir()]
                own = name == KEPT and any(map(is_kept_name, below))
                foreign = bool(below) and not own
            if foreign:
                raise JobError(
                    f"{self.root}: holds {name}, but no job.yaml: it may be another program's; "
                    "choose another directory with --out, or put the job.yaml of the run back"
                )

    def claim(self, tree: dict[str, Any], *, continued: bool = False) -> None:
        """Make and lock the directory for a new run of the job ``tree``; on rank 0 alone.

        Args:
            tree: the resolved job.
            continued: whether the start would have resumed a run of it, if it had found one.

        Raises:
            JobError: it cannot be written, holds a run or a sweep already, lies in a run, or is
                locked.
        """
        content = self.job_text(tree)
        if len(content) > LARGEST_FILE:  # a resume refuses to read so large a file
            raise JobError(
                f"{self.job}: {len(content)} bytes are too many for a job; put the rounds of "
                "cohort into a JSON file, cohort.path"
            )
        if present(self.root / SWEEP_LOG):
            raise JobError(f"{self.root}: holds a sweep's runs; choose another with --out")
        self._refuse_nesting()
        try:
            make_folder(self.root)
            self.checkpoints.mkdir(exist_ok=True)
            self.stores.mkdir(exist_ok=True)
        except OSError as e:
            message = f"{self.root}: cannot be made: {e.strerror}; choose another with --out"
            raise file_error(e, message, JobError) from e
        self.lock()
        if present(self.job):
            difference = self._difference(tree, content)
            if difference is not None:
                raise JobError(
                    f"{self.root}: holds a run of another job{difference}; choose another "
                    "directory with --out"
                )
            self.refuse_log_without_checkpoint()
            if self.has_checkpoint:
                raise JobError(
                    f"{self.root}: holds a run of this job already; use "
                    f"`hpcfl resume {self.root}` (from Python: continued=True), or remove the "
                    "directory to start again",
                    # Another start was quicker, and has ended.
                    exit_code=REPEAT if continued else None,
                )
        self.write_job(content)

    def _refuse_nesting(self) -> None:
        """Refuse a directory in a run or around runs: a report takes all below a run for its own.

        Raises:
            JobError: it is one.
        """
        self.refuse_inside_run()
        if present(self.root) and not present(self.job):
            with readable(self.root):
                below = (
                    sorted(filter(_holds_run, self.root.iterdir())) if self.root.is_dir() else []
                )
            if below:
                raise JobError(
                    f"{self.root}: holds other runs, such as {below[0].name}; choose a directory "
                    f"for this run alone, --out {self.root / 'NAME'}"
                )

    def refuse_inside_run(self) -> None:
        """Refuse a directory below that of a run.

        Raises:
            JobError: it is.
        """
        for folder in self.root.resolve().parents:
            if _holds_run(folder):
                raise JobError(
                    f"{self.root}: lies in the directory of a run, {folder}; choose another place"
                )

    def _difference(self, tree: dict[str, Any], content: bytes) -> str | None:
        """What makes job.yaml another job than ``tree``, for a message; None if it is the same.

        Before the first round the keys that a resume may change do not count: there is nothing they
        change.
        """
        there = read_bytes(self.job, "remove it, or choose another with --out")
        if there == content:
            return None
        try:
            found: dict[str, Any] = plain(self.parse_job(there).tree)
        except (JobError, StoreError):  # edited, or no job.yaml of hpcfl: not to be overwritten
            return ""
        if found == tree:
            return None
        jobs = flatten(found), flatten(tree)
        differing = [*changed(*jobs)]
        if not differing:
            return ""
        bound = [*immutable_changes(*jobs)]
        if not bound and self.is_unbegun:
            return None
        key, before, here = (bound or differing)[0]
        resume = f" (a resume may change it: `hpcfl resume {self.root} {key}=...`)"
        more = resume if not bound and self.has_checkpoint else ""
        return f": {key} is {before} there, {here} here{more}"

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint is committed; that of round 0 is written before the first round."""
        return bool(committed_folders(self.checkpoints))

    @property
    def is_record(self) -> bool:
        """Whether it is what ``hpcfl export --record`` writes: a log without models and states."""
        return self._has_log_alone and not present(self.initial)

    @property
    def _has_log(self) -> bool:
        # A run writes its first checkpoint before its first line of the log.
        return present(self.log) and self.log.lstat().st_size > 0

    @property
    def _has_log_alone(self) -> bool:
        """Whether there are rounds in the log, but no checkpoint."""
        return self._has_log and not self.has_checkpoint

    @property
    def is_unbegun(self) -> bool:
        """Whether there are neither rounds nor checkpoints, as where a start was refused."""
        return not self._has_log and not self.has_checkpoint

    def refuse_log_without_checkpoint(self) -> None:
        """Refuse the log of rounds without a checkpoint: a new start would delete it.

        A record has one, and it is left where checkpoints were deleted.

        Raises:
            JobError: the directory holds one.
        """
        if self.is_record:
            raise JobError(
                f"{self.root}: holds the record of a run, without its models, which cannot be "
                "resumed; name the run, or choose another directory with --out; `hpcfl run "
                f"{self.root}` repeats it"
            )
        if self._has_log_alone:
            raise JobError(
                f"{self.root}: holds the log of a run, but none of its checkpoints; put one back, "
                "or remove the directory to start again"
            )

    def require(self) -> None:
        """Refuse a directory that holds no run.

        Raises:
            JobError: it does not.
        """
        if not present(self.job) and present(self.root / SWEEP_LOG):
            raise JobError(f"{self.root}: holds the runs of a sweep; name one of them")
        if not present(self.job):
            raise JobError(
                f"{self.root}: holds no run (no job.yaml); name the --out directory of a run, "
                "or start one with `hpcfl run`"
            )

    def lock(self, holder: str = "a run", *, shared: bool = False) -> None:
        """Lock the directory until the context or this process ends; once is enough.

        Args:
            holder: names the process that may have locked it, in the message of the error.
            shared: lock it together with others that do so, too.

        Raises:
            JobError: it is not writable, or another process has locked it.
        """
        if self._lock is not None:
            return
        try:
            fd = regular.open_fd(self.lock_file, os.O_RDWR | os.O_CREAT, follow=False)
        except OSError as e:
            message = f"{self.lock_file}: cannot be opened: {e.strerror}"
            raise file_error(e, message, JobError) from e
        try:
            unlocked = lock_now(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except BlockingIOError as e:
            os.close(fd)
            raise self._occupied(holder) from e
        if unlocked:
            if are_written(self.ranks):
                os.close(fd)
                raise self._occupied(holder) from unlocked
            warn_of_no_locks(str(unlocked.strerror))
        self._lock = fd

    def _occupied(self, holder: str) -> JobError:
        message = f"{self.root}: {holder} is alive in this directory; wait for it or stop it"
        return JobError(message, exit_code=REPEAT)

    def require_unlocked(self) -> None:
        """Refuse a directory that a run uses.

        Raises:
            JobError: one does.
        """
        if self.is_locked():
            raise self._occupied("a run")

    def hold_open(self) -> None:
        """Open the files that a resume needs, to notice if they are deleted; on rank 0 alone.

        Raises:
            LostFileError: one is missing already.
        """
        paths = [self.root, self.checkpoints, self.stores, self.job, self.initial]
        more = (self.function, self.buffers, self.branches)
        paths += [path for path in more if path.exists()]
        for path in paths:
            self._held_paths.append(HeldPath.open(path))

    def require_in_place(self) -> None:
        """Refuse to commit a checkpoint where the lock or a file of ``hold_open`` is gone.

        Raises:
            LostFileError: it was deleted, replaced or changed.
        """
        for held in self._held_paths:
            held.check()
        if self._lock is not None:  # without its file, a second run could lock the directory
            check_in_place(self.lock_file, self._lock)

    def is_locked(self) -> bool:
        """Whether a run uses the directory; needs no permission to write there.

        On a file system without locks the heartbeats tell, if need be after some seconds.
        """
        try:
            fd = regular.open_fd(self.lock_file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as e:
            message = f"{self.lock_file}: cannot be opened: {e.strerror}"
            raise file_error(e, message, StoreError) from e
        try:
            # A shared lock for a moment: a run that starts right now tries again (``lock_now``).
            unlocked = lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return bool(unlocked) and are_written(self.ranks)

    def job_text(self, tree: Mapping[str, Any]) -> bytes:
        """The content of job.yaml for a job; files of the directory are named relative to it."""
        return write_resolved(relative_to_run(tree, self.root))

    def job_content(self) -> bytes:
        """The content of job.yaml; under the lock it is read once.

        Raises:
            StoreError: it cannot be read.
        """
        content = self._job or resolved_content(self.job)
        if self._lock is not None:
            self._job = content
        return content

    def write_job(self, content: bytes, *, advice: str = "make room or repair the disk") -> None:
        """Write job.yaml; see ``write_file``."""
        write_file(self.job, content, advice=advice)
        self._job = content

    def read_job(self) -> JobFile:
        """Read the resolved job; under the lock it is read once.

        Raises:
            StoreError: job.yaml was changed, or another version of hpcfl wrote it.
            JobError: it is no YAML mapping.
        """
        return self.parse_job(self.job_content())

    def parse_job(self, content: bytes) -> JobFile:
        """Parse the content of job.yaml.

        Raises:
            StoreError, JobError: see ``read_job``.
        """
        try:
            return parse_resolved(self.job, content)
        except StoreError:
            for folder in committed_folders(self.checkpoints):
                require_format(folder)
            raise

    def write_function(self, content: bytes) -> dict[str, int]:
        """Write what the model computes at the start.

        Returns:
            The name of the file and its crc32, for the manifests.
        """
        write_file(self.function, content)
        return {FUNCTION: crc32(content)}

    def add_to_history(self, entry: dict[str, Any]) -> None:
        """Append an entry with the time; that of a start replaces the one of ``open_session``."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **entry}
        earlier = self.history_entries()
        kept = [e for e in earlier if "opened" not in e or e["opened"] != entry.get("session")]
        self.write_history([*kept, entry])

    def open_session(self, session_id: str) -> set[str]:
        """Add a start to the history before it writes client states; ``record_start`` completes it.

        Args:
            session_id: of the start.

        Returns:
            The ids of all earlier starts, also of those that ended before their first round.

        Raises:
            StoreError: the history is damaged, or cannot be written.
        """
        found = (entry.get("session", entry.get("opened")) for entry in self.history_entries())
        earlier = {session_id for session_id in found if isinstance(session_id, str)}
        self.add_to_history({"opened": session_id})
        return earlier

    def write_history(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Replace the history."""
        written = [dict(entry) for entry in entries]
        write_file(self.history, history_text(written))
        if self._lock is not None:
            self._history = written

    def history_entries(self) -> list[dict[str, Any]]:
        """The history as ``read_history`` returns it; under the lock it is read once, by a start.

        Raises:
            StoreError: it is damaged, or cannot be read.
        """
        found = self._history
        if found is None:
            found = self.read_history(for_start=self._lock is not None)
        if self._lock is not None:
            self._history = found
        return list(found)

    def read_history(self, *, for_start: bool = False) -> list[dict[str, Any]]:
        """Read the history: the starts of the run, and where it was copied; oldest first.

        Args:
            for_start: whether to leave out what follows the last whole line, if no part of it can
                be another; ``history_note`` says so then.  Not the first line: a file that begins
                with something else is not the run's, and would be replaced.

        Raises:
            StoreError: it is damaged, or cannot be read.
        """
        try:
            content = read_bytes(self.history, "repair the disk")
        except FileNotFoundError:  # before the first start
            return []
        entries, lines = list[dict[str, Any]](), content.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                entries.append(_entry(line))
            except (ValueError, TypeError) as e:
                if for_start and entries and not any(map(checksum.ends_json, lines[number - 1 :])):
                    self.history_note = (
                        f"{self.history}:{number}: is no whole line, and none follows: removed. "
                        "What this line said of an earlier start is not known"
                    )
                    break
                raise StoreError(
                    f"{self.history}:{number}: is damaged: {e}; remove this line, or the file, and "
                    "try again: nothing in it is needed to resume"
                ) from e
        return entries

    @property
    def last_start(self) -> Mapping[str, Any]:
        """The entry of the newest start in the history; empty before the first start.

        Raises:
            StoreError: the history is damaged.
        """
        return last_start(self.history_entries())

    @cached_property
    def job_fingerprint(self) -> str:
        """A digest of the settings that a resume must not change."""
        return job_fingerprint(flatten(relative_to_run(self.read_job().tree, self.root)))


def last_start(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The entry of the newest start in a history, oldest first; empty before the first start."""
    return next((entry for entry in reversed(history) if "session" in entry), {})


def history_text(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The content of a history.jsonl."""
    return b"".join(checksum.add_to_json(json.dumps(entry)) + b"\n" for entry in entries)


def _entry(line: bytes) -> dict[str, Any]:
    """Parse a line of the history, without its line break.

    Raises:
        ValueError, TypeError: it is damaged.
    """
    entry = parse_json(checksum.remove_from_json(line))
    if not isinstance(entry, dict):
        raise TypeError(f"a {type(entry).__name__}")
    kinds = {"round": int, **dict.fromkeys(("settings", "inputs", "packages", "code"), dict)}
    for key, kind in kinds.items():
        if not isinstance(entry.get(key, kind()), kind):
            raise TypeError(f"{key} is {entry[key]!r}")
    return entry


def _holds_run(folder: Path) -> bool:
    """Whether a folder has the files that every run directory has from its start."""
    return all(
        os.path.lexists(folder / name) for name in ("job.yaml", "lock", "checkpoints", "stores")
    )
