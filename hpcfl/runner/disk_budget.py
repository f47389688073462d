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


def disk_budget(components: Components, usage: ScheduleUsage) -> DiskBudget:
    """Compute the disk space of a run from its simulated schedule."""
    job, ranks = components.job, len(usage.members)
    best = best_bytes(components)
    tables = max(1, len(usage.states))  # one writes row tables even where no state is kept
    rows = int(usage.seen.sum()) if usage.states else 0
    due = -(-job.rounds // job.checkpoint.every)
    return DiskBudget(
        stores=int(usage.stores.sum()),
        checkpoint=_checkpoint(components, best, tables * ranks)
        + tables * (ranks * TABLE_HEADER + rows * TABLE_ENTRY),
        checkpoints=min(job.checkpoint.keep, due) + 1,
        best=best,
        model=nbytes(components.x0),
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


def _checkpoint(components: Components, best: int, tables: int) -> int:
    """A checkpoint's bytes but for the contents of its ``tables`` row tables."""
    files = [_file(components.schema.server)]
    if components.job.diagnostics.cosine:
        files.append(_file([components.schema.message.x]))
    if best:
        files.append(best)
    own = (
        components.job.data.input_files() or ()
    )  # None is one input, of which only its bytes are known
    inputs = MANIFEST_INPUTS + sum(MANIFEST_INPUT + len(file.name) for file in own)
    return sum(files) + MANIFEST + inputs + (len(files) - 1 + tables) * MANIFEST_FILE


def best_bytes(components: Components) -> int:
    """The bytes of best.safetensors: the model, its round and its score."""
    if not components.job.evaluate.best:
        return 0
    number = torch.empty((), dtype=torch.float64)
    return _file([components.schema.message.x, number, number]) + CHECKSUM


def _file(fields: Any) -> int:
    """The bytes of a safetensors file."""
    tensors = sum(len(field) if isinstance(field, tuple) else 1 for field in fields)
    return nbytes(fields) + HEADER + tensors * TENSOR_HEADER
