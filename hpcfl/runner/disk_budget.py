"""Compute the disk space that a run directory needs, and check that it is free."""

from pathlib import Path
from shutil import disk_usage
from typing import Any, NamedTuple

import torch
from rich.filesize import decimal

from hpcfl.engine.schema import nbytes
from hpcfl.errors import JobError
from hpcfl.runner.components import Components
from hpcfl.runner.schedule import ScheduleUsage
from hpcfl.store.disk_usage import TABLE_ENTRY, TABLE_HEADER

HEADER, TENSOR_HEADER = 16, 60  # bytes of a safetensors file before its numbers, of each tensor
CHECKSUM = 36  # bytes of the checksum that a safetensors file may hold
MANIFEST, MANIFEST_FILE = 206, 35  # bytes of manifest.json, of each file but one that it names
MANIFEST_INPUTS, MANIFEST_INPUT = 17, 80  # of its inputs, and of each but for its name


class DiskBudget(NamedTuple):
    """Bytes of a run directory at most, without logs and events."""

    stores: int
    """The segments of all ranks."""
    checkpoint: int
    """One checkpoint, without the states."""
    checkpoints: int
    """Checkpoints at a time."""
    best: int
    """The best model's file, of which every checkpoint holds one more; 0 if none is kept."""
    model: int
    """The initial model."""

    @property
    def total(self) -> int:
        """All together."""
        return self.stores + self.checkpoints * self.checkpoint + self.best + self.model


def disk_budget(parts: Components, played: ScheduleUsage) -> DiskBudget:
    """The room for a job whose cohorts were drawn."""
    job, ranks = parts.job, len(played.members)
    best = best_bytes(parts)
    tables = max(1, len(played.states))  # one writes row tables even where no state is kept
    rows = int(played.seen.sum()) if played.states else 0
    due = -(-job.rounds // job.checkpoint.every)
    return DiskBudget(
        stores=int(played.stores.sum()),
        checkpoint=_checkpoint(parts, best, tables * ranks)
        + tables * (ranks * TABLE_HEADER + rows * TABLE_ENTRY),
        checkpoints=min(job.checkpoint.keep, due) + 1,
        best=best,
        model=nbytes(parts.x0),
    )


def require(needed: DiskBudget, folder: Path) -> None:
    """Refuse a run directory on a disk that is too small.

    Raises:
        JobError: it is.
    """
    free = disk_usage(folder).free
    if needed.total > free:
        raise JobError(
            f"{folder}: the disk is too small: the run needs {decimal(needed.total)} "
            f"({decimal(needed.stores)} of client states, {needed.checkpoints} checkpoints of "
            f"{decimal(needed.checkpoint)} besides), found {decimal(free)} free; make room, choose "
            "another disk with --out, or lower checkpoint.keep"
        )


def _checkpoint(parts: Components, best: int, tables: int) -> int:
    """A checkpoint's bytes but for the contents of its ``tables`` row tables."""
    files = [_file(parts.schema.server)]
    if parts.job.diagnostics.cosine:
        files.append(_file([parts.schema.message.x]))
    if best:
        files.append(best)
    own = parts.job.data.input_files() or ()  # None is one input, of which only its bytes are known
    inputs = MANIFEST_INPUTS + sum(MANIFEST_INPUT + len(file.name) for file in own)
    return sum(files) + MANIFEST + inputs + (len(files) - 1 + tables) * MANIFEST_FILE


def best_bytes(parts: Components) -> int:
    """The bytes of best.safetensors: the model, its round and its score."""
    if not parts.job.evaluate.best:
        return 0
    number = torch.empty((), dtype=torch.float64)
    return _file([parts.schema.message.x, number, number]) + CHECKSUM


def _file(fields: Any) -> int:
    """The bytes of a safetensors file."""
    tensors = sum(len(field) if isinstance(field, tuple) else 1 for field in fields)
    return nbytes(fields) + HEADER + tensors * TENSOR_HEADER
