"""Compute the disk space that a run directory needs, and check that so much is free."""

from pathlib import Path
from shutil import disk_usage
from typing import Any, NamedTuple

import torch
from rich.filesize import decimal

from hpcfl.engine.dry_round import nbytes
from hpcfl.errors import JobError
from hpcfl.job.resume_rules import input_places
from hpcfl.job.settings import flatten
from hpcfl.runner.components import Components
from hpcfl.runner.schedule_usage import ScheduleUsage
from hpcfl.store.disk_usage import TABLE_ENTRY, TABLE_HEADER

# Bytes of a safetensors file besides its numbers: once, for each tensor, and of its checksum.
HEADER, TENSOR_HEADER, CHECKSUM = 16, 60, 36
# Bytes of manifest.json with one file, and of each further file that it names.
MANIFEST, MANIFEST_FILE = 206, 35
# Bytes of its list of inputs, and of each input without its name.
MANIFEST_INPUTS, MANIFEST_INPUT = 17, 80


class DiskBudget(NamedTuple):
    """The bytes that a run directory takes at most, without logs and events."""

    stores: int
    """The segments of all ranks."""
    checkpoint: int
    """One checkpoint, without the states."""
    checkpoints: int
    """The number of checkpoints at a time."""
    model: int
    """The initial model."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.stores + self.checkpoints * self.checkpoint + self.model


def disk_budget(components: Components, usage: ScheduleUsage) -> DiskBudget:
    """Compute the disk space of a run from its simulated schedule."""
    job, ranks = components.job, len(usage.most_owned)
    best = best_bytes(components)
    tables = max(1, len(usage.states))  # row tables are written even where no state is kept
    rows = int(usage.seen.sum()) if usage.states else 0
    due = -(-job.rounds // job.checkpoint.every)
    return DiskBudget(
        stores=int(usage.store_bytes.sum()),
        checkpoint=_checkpoint_bytes(components, best, tables * ranks)
        + tables * (ranks * TABLE_HEADER + rows * TABLE_ENTRY),
        checkpoints=min(job.checkpoint.keep, due) + 1,  # an old one is deleted after the commit
        model=nbytes(components.x0),
    )


def require_disk_space(needed: DiskBudget, folder: Path) -> None:
    """Refuse a run directory on a disk that is too small.

    Raises:
        JobError: the disk has less space free than the run needs.
    """
    free = disk_usage(folder).free
    if needed.total > free:
        raise JobError(
            f"{folder}: the disk is too small: the run needs {decimal(needed.total)} "
            f"({decimal(needed.stores)} of client states, {needed.checkpoints} checkpoints of "
            f"{decimal(needed.checkpoint)} besides), found {decimal(free)} free; make room, choose "
            "another disk with --out, or lower checkpoint.keep"
        )


def _checkpoint_bytes(components: Components, best: int, tables: int) -> int:
    """The bytes of a checkpoint without the contents of its ``tables`` row tables."""
    files = [_safetensors_bytes(components.schema.server)]
    if components.job.diagnostics.cosine:
        files.append(_safetensors_bytes([components.schema.message.x]))
    if best:
        files.append(best)
    # The digest of data that no key of the job says where to find is not counted.
    places = input_places(flatten(components.loaded.tree))
    inputs = MANIFEST_INPUTS + sum(MANIFEST_INPUT + len(key) for key in places)
    return sum(files) + MANIFEST + inputs + (len(files) - 1 + tables) * MANIFEST_FILE


def best_bytes(components: Components) -> int:
    """The bytes of a checkpoint's best.safetensors: the model, its round and its score."""
    if not components.job.evaluate.best:
        return 0
    number = torch.empty((), dtype=torch.float64)
    return _safetensors_bytes([components.schema.message.x, number, number]) + CHECKSUM


def _safetensors_bytes(fields: Any) -> int:
    """The bytes of a safetensors file."""
    tensors = sum(len(field) if isinstance(field, tuple) else 1 for field in fields)
    return nbytes(fields) + HEADER + tensors * TENSOR_HEADER
