"""Sizes of the files of a run other than the stores."""

from typing import Any

import torch

from hpcfl.assemble import Parts
from hpcfl.schema import nbytes

HEADER, TENSOR_HEADER = 16, 60  # bytes of a safetensors file before its numbers, of each tensor
MANIFEST, MANIFEST_FILE = 140, 35  # bytes of manifest.json, of each file but one that it names


def checkpoint_bytes(parts: Parts, best: int, tables: int) -> int:
    """A checkpoint's bytes but for the contents of its ``tables`` row tables."""
    files = [_file(parts.schema.server)]
    if parts.job.diagnostics.cosine:
        files.append(_file([parts.schema.message.x]))
    if best:
        files.append(best)
    return sum(files) + MANIFEST + (len(files) - 1 + tables) * MANIFEST_FILE


def best_bytes(parts: Parts) -> int:
    """The bytes of best.safetensors: the model, its round and its score."""
    if not parts.job.evaluate.best:
        return 0
    number = torch.empty((), dtype=torch.float64)
    return _file([parts.schema.message.x, number, number])


def _file(fields: Any) -> int:
    """The bytes of a safetensors file."""
    tensors = sum(len(field) if isinstance(field, tuple) else 1 for field in fields)
    return nbytes(fields) + HEADER + tensors * TENSOR_HEADER
