"""The run directory: where everything a run leaves behind lies, and whose it is.

job.yaml        the resolved job
history.jsonl   one object a start: when, from which round, ranks, versions, git commit
log.jsonl       one object a round
initial.npy     the initial model, flat
buffers.safetensors  what the model computes with besides, if anything, see hpcfl.buffers
best.safetensors  the model of the best evaluated round, if the job keeps it, see hpcfl.best
checkpoints/    see hpcfl.checkpoint
stores/         segments of client states, see hpcfl.store
lock            held while a run is alive
"""

import fcntl
import io
import json
import os
import platform
import subprocess
import time
import warnings
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import yaml

from hpcfl import __version__
from hpcfl.checkpoint import BEST
from hpcfl.errors import JobError, StoreError
from hpcfl.store.durable import write_file
from hpcfl.types import Vector

PATIENCE = 3  # more tries for the lock, which someone may hold for an instant to look


class RunDir:
    """The paths of one run directory; as a context manager, it lets go of the lock at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.job = root / "job.yaml"
        self.history = root / "history.jsonl"
        self.log = root / "log.jsonl"
        self.initial = root / "initial.npy"
        self.buffers = root / "buffers.safetensors"
        self.best = root / BEST
        self.checkpoints = root / "checkpoints"
        self.stores = root / "stores"
        self._lock = root / "lock"
        self._held: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def claim(self, tree: dict[str, Any]) -> None:
        """Make the directory, for a new run of the job ``tree``; called on rank 0.

        Raises:
            JobError: it cannot be written, or holds a run already.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
            self.stores.mkdir(exist_ok=True)
        except OSError as e:
            raise JobError(
                f"{self.root}: cannot be made: {e.strerror}; choose another with --out"
            ) from e
        self.lock()
        content = yaml.safe_dump(tree, sort_keys=False).encode()
        if self.job.exists():
            if self.job.read_bytes() != content:
                raise JobError(
                    f"{self.root}: holds a run of another job; choose another directory with --out"
                )
            if any(self.checkpoints.glob("*/manifest.json")):
                raise JobError(
                    f"{self.root}: holds a run of this job already; use "
                    f"`hpcfl resume {self.root}`, or remove the directory to start anew"
                )
        write_file(self.job, content)

    def require(self) -> None:
        """Refuse a directory that holds no run.

        Raises:
            JobError: it does not.
        """
        if not self.job.is_file():
            raise JobError(
                f"{self.root}: holds no run (no job.yaml); name the --out directory of a run, "
                "or start one with `hpcfl run`"
            )

    def lock(self, holder: str = "a run") -> None:
        """Hold the directory until the context or this process ends.

        Args:
            holder: what is said to be alive there if it is held already.

        Raises:
            JobError: it is not writable, or another run holds it.
        """
        try:
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            raise JobError(f"{self._lock}: cannot be opened: {e.strerror}") from e
        for patience in range(PATIENCE, -1, -1):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                if patience:
                    time.sleep(0.1)
                    continue
                os.close(fd)
                raise JobError(
                    f"{self.root}: {holder} is alive in this directory; wait for it or stop it"
                ) from e
            except OSError as e:
                text = f"{self._lock}: no locks on this file system ({e.strerror}): nothing keeps "
                warnings.warn(text + "a second run out of the directory", stacklevel=2)
            self._held = fd
            return

    def held(self) -> bool:
        """Whether a run is alive in the directory; needs no right to write there."""
        try:
            fd = os.open(self._lock, os.O_RDONLY)
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

    def write_initial(self, x0: Vector) -> None:
        """Keep the initial model."""
        buffer = io.BytesIO()
        np.save(buffer, x0.cpu().numpy(), allow_pickle=False)
        write_file(self.initial, buffer.getvalue())

    def read_initial(self, like: Vector | None = None) -> Vector:
        """The initial model, of the shape and dtype of ``like`` if that is given.

        Raises:
            StoreError: it is missing, damaged or of another model.
        """
        try:
            x0 = torch.from_numpy(np.load(self.initial, allow_pickle=False))
        except (OSError, ValueError, EOFError) as e:
            raise StoreError(f"{self.initial}: cannot be read: {e}") from e
        if like is not None and (x0.shape, x0.dtype) != (like.shape, like.dtype):
            raise StoreError(
                f"{self.initial}: found {tuple(x0.shape)} {x0.dtype}, "
                f"expected {tuple(like.shape)} {like.dtype}"
            )
        return x0

    def note_start(self, facts: dict[str, Any]) -> None:
        """Append a start to the history."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **facts, **versions()}
        lines = [json.dumps(start) for start in [*self.starts(), entry]]
        write_file(self.history, "".join(line + "\n" for line in lines).encode())

    def starts(self) -> list[dict[str, Any]]:
        """Every start of the run so far, oldest first.

        Raises:
            StoreError: the history is damaged.
        """
        if not self.history.exists():
            return []
        try:
            return [json.loads(line) for line in self.history.read_text().splitlines()]
        except ValueError as e:
            raise StoreError(f"{self.history}: is not one JSON object a line: {e}") from e

    def changes(self) -> list[str]:
        """What changed since the last start that the bits may depend on, a line each."""
        now, starts = versions(), self.starts()
        before = starts[-1] if starts else now
        return [
            f"{name} was {before.get(name)}, is {found}: the bits may differ from those of an "
            "uninterrupted run"
            for name, found in now.items()
            if name != "git" and before.get(name) != found
        ]

    @property
    def mark(self) -> str:
        """What identifies the job of this directory."""
        return blake2b(self.job.read_bytes(), digest_size=8).hexdigest()


def versions() -> dict[str, Any]:
    """What the bits of a run may depend on besides its job."""
    found: dict[str, Any] = {"hpcfl": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "h5py", "mpi4py"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    found["git"] = _git_commit()
    found["processor"] = _processor()
    return found


def _git_commit() -> str | None:
    """The commit of the checkout that hpcfl runs from, "-dirty" if changed; None without one."""
    here = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(here), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        return done.stdout.strip()

    try:
        if git("rev-parse", "--show-toplevel") != str(here):
            return None  # installed, perhaps below somebody else's checkout
        commit = git("rev-parse", "HEAD")
        return commit + ("-dirty" if git("status", "--porcelain", "-uno") else "") or None
    except OSError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
