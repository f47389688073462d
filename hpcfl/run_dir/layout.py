"""The layout of a run directory, and the lock that says that a run is alive.

job.yaml        the resolved job; its last line is the checksum of the others
history.jsonl   one object a start: when, from which round, ranks, versions, git commit, what of the
                job may change and what did, how it ended (see hpcfl.run_dir.history); and one where
                the run was copied from another
log.jsonl       one object a round; in both files every line ends with its checksum
events/         the same for TensorBoard, where that is installed, see hpcfl.run_dir.tensorboard
initial.npy     the initial model, flat; every manifest of a checkpoint has its checksum
buffers.safetensors  the model's buffers, if it has any, see hpcfl.checkpoint.buffers
best.safetensors  the best evaluated model, if the job keeps it, see hpcfl.checkpoint.best
checkpoints/    see hpcfl.run_dir.manifest and hpcfl.checkpoint.format
stores/         segments of client states, see hpcfl.store
ranks/SESSION/  where every rank of a live run is, see hpcfl.comm.heartbeat
lock            held while a run is alive
"""

import fcntl
import io
import json
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
import torch

from hpcfl.errors import DataError, JobError, StoreError, file_error
from hpcfl.io import checksum
from hpcfl.io.atomic import write_file
from hpcfl.io.files import parse_json, present, read_array, read_bytes
from hpcfl.io.live_files import HeldPath, check_in_place
from hpcfl.job.resume_rules import job_fingerprint
from hpcfl.job.settings import flatten
from hpcfl.job.yaml_file import LARGEST_FILE, JobFile, read_resolved, write_resolved
from hpcfl.run_dir.manifest import BEST, INITIAL, committed_folders, require_format
from hpcfl.types import Vector

SWEEP_LOG = "sweep.log"
"""Stands where a sweep has its runs."""
PATIENCE = 3  # more tries for the lock, which someone may hold for an instant to look


class RunDir:
    """The paths of one run directory; as a context manager, it lets go of the lock at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.job = root / "job.yaml"
        self.history = root / "history.jsonl"
        self.log = root / "log.jsonl"
        self.events = root / "events"
        self.initial = root / INITIAL
        self.buffers = root / "buffers.safetensors"
        self.best = root / BEST
        self.checkpoints = root / "checkpoints"
        self.stores = root / "stores"
        self.ranks = root / "ranks"
        self.lock_file = root / "lock"
        self._held: int | None = None
        self._paths: list[HeldPath] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None
        while self._paths:
            self._paths.pop().close()

    def claim(self, tree: dict[str, Any]) -> None:
        """Make the directory, for a new run of the job ``tree``; called on rank 0.

        Raises:
            JobError: it cannot be written, or holds a run or a sweep already.
        """
        content = write_resolved(tree)
        if len(content) > LARGEST_FILE:  # no resume would read it
            raise JobError(
                f"{self.job}: {len(content)} bytes are too many for a job; put the rounds of "
                "cohort into a JSON file, cohort.path"
            )
        if present(self.root / SWEEP_LOG):
            raise JobError(f"{self.root}: holds a sweep's runs; choose another with --out")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
            self.stores.mkdir(exist_ok=True)
        except OSError as e:
            message = f"{self.root}: cannot be made: {e.strerror}; choose another with --out"
            raise file_error(e, message, JobError) from e
        self.lock()
        if present(self.job):
            if read_bytes(self.job, "remove it, or choose another with --out") != content:
                raise JobError(
                    f"{self.root}: holds a run of another job; choose another directory with --out"
                )
            if self.has_checkpoint:
                raise JobError(
                    f"{self.root}: holds a run of this job already; use "
                    f"`hpcfl resume {self.root}`, or remove the directory to start anew"
                )
        write_file(self.job, content)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a committed checkpoint, the first of which is that of round 0."""
        return bool(committed_folders(self.checkpoints))

    def require(self) -> None:
        """Refuse a directory that holds no run.

        Raises:
            JobError: it does not.
        """
        if not present(self.job):
            raise JobError(
                f"{self.root}: holds no run (no job.yaml); name the --out directory of a run, "
                "or start one with `hpcfl run`"
            )

    def lock(self, holder: str = "a run", *, shared: bool = False) -> None:
        """Hold the directory until the context or this process ends.

        Args:
            holder: what is said to be alive there if it is held already.
            shared: together with others that say so.

        Raises:
            JobError: it is not writable, or another run holds it.
        """
        try:
            fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            message = f"{self.lock_file}: cannot be opened: {e.strerror}"
            raise file_error(e, message, JobError) from e
        for patience in range(PATIENCE, -1, -1):
            try:
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError as e:
                if patience:
                    time.sleep(0.1)
                    continue
                os.close(fd)
                raise JobError(
                    f"{self.root}: {holder} is alive in this directory; wait for it or stop it"
                ) from e
            except OSError as e:
                text = (
                    f"{self.lock_file}: no locks on this file system ({e.strerror}): nothing keeps "
                )
                warnings.warn(text + "a second run out of the directory", stacklevel=2)
            self._held = fd
            return

    def hold_open(self) -> None:
        """Hold open what a resume needs of the directory, to notice when it goes; on rank 0.

        Raises:
            LostFileError: something is gone already.
        """
        paths = [self.root, self.checkpoints, self.stores, self.job, self.initial]
        if self.buffers.exists():
            paths.append(self.buffers)
        for path in paths:
            self._paths.append(HeldPath.open(path))

    def require_in_place(self) -> None:
        """Refuse to commit where something that ``hold`` holds, or the lock, is gone.

        Raises:
            LostFileError: it was deleted or replaced, or a file that stays as it is was changed.
        """
        for held in self._paths:
            held.check()
        if self._held is not None:  # else a second run could start here
            check_in_place(self.lock_file, self._held)

    def is_locked(self) -> bool:
        """Whether a run is alive in the directory; needs no right to write there."""
        try:
            fd = os.open(self.lock_file, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            # Shared, and for an instant: `lock` has the patience to outlast it.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(fd)
        return False

    def read_job(self) -> JobFile:
        """The resolved job.

        Raises:
            StoreError: job.yaml is not as hpcfl wrote it, or another version of hpcfl did.
            JobError: it is no YAML mapping.
        """
        try:
            return read_resolved(self.job)
        except StoreError:
            for folder in committed_folders(self.checkpoints):
                require_format(folder)
            raise

    def write_initial(self, x0: Vector) -> dict[str, int]:
        """Keep the initial model.

        Returns:
            The name of the file and its crc32, for the manifests.
        """
        buffer = io.BytesIO()
        np.save(buffer, x0.cpu().numpy(), allow_pickle=False)
        write_file(self.initial, buffer.getvalue())
        return {INITIAL: crc32(buffer.getvalue())}

    def read_initial(self, like: Vector | None = None) -> Vector:
        """The initial model, of the shape and dtype of ``like`` if that is given.

        Raises:
            StoreError: it is missing, damaged or of another model.
        """
        try:
            x0 = torch.from_numpy(read_array(self.initial))
        except (DataError, TypeError) as e:  # the latter of what torch does not know
            raise StoreError(f"{self.initial}: cannot be read: {e}") from e
        if like is not None and (x0.shape, x0.dtype) != (like.shape, like.dtype):
            raise StoreError(
                f"{self.initial}: found {tuple(x0.shape)} {x0.dtype}, "
                f"expected {tuple(like.shape)} {like.dtype}"
            )
        return x0

    def add_to_history(self, entry: dict[str, Any]) -> None:
        """Append to the history."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **entry}
        self.write_history([*self.history_entries(), entry])

    def write_history(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Replace the history."""
        lines = [checksum.add_to_json(json.dumps(entry)) + b"\n" for entry in entries]
        write_file(self.history, b"".join(lines))

    def history_entries(self) -> list[dict[str, Any]]:
        """The history: every start of the run, and where it branched off; oldest first.

        Raises:
            StoreError: it is damaged, or cannot be read.
        """
        try:
            content = read_bytes(self.history, "repair the disk")
        except FileNotFoundError:  # before the first start
            return []
        entries = []
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            try:
                entries.append(_entry(line))
            except (ValueError, TypeError) as e:
                raise StoreError(
                    f"{self.history}:{number}: is damaged: {e}; remove this line, or the file, and "
                    "try again: nothing in it is needed to resume"
                ) from e
        return entries

    @property
    def last_start(self) -> dict[str, Any]:
        """The newest start in the history; empty before the first.

        Raises:
            StoreError: the history is damaged.
        """
        return next((entry for entry in reversed(self.history_entries()) if "life" in entry), {})

    @cached_property
    def job_fingerprint(self) -> str:
        """What identifies the job of this directory."""
        return job_fingerprint(flatten(self.read_job().tree))


def _entry(line: bytes) -> dict[str, Any]:
    """One line of the history.

    Raises:
        ValueError, TypeError: it is damaged.
    """
    if not line.endswith(b"\n"):  # the whole file was written at once
        raise ValueError("its line break is missing")
    entry = parse_json(checksum.remove_from_json(line[:-1]))
    if not isinstance(entry, dict):
        raise TypeError(f"a {type(entry).__name__}")
    for key, kind in (("round", int), ("settings", dict)):
        if not isinstance(entry.get(key, kind()), kind):
            raise TypeError(f"{key} is {entry[key]!r}")
    return entry
