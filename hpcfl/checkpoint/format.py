"""Read and write the contents of a checkpoint.

    checkpoints/00000500/
        server.safetensors   the server's state
        kept.safetensors     other tensors that later rounds need, if there are any
        best.safetensors     the best model so far, if the job keeps it
        rows-RANK.npz        the segment and row of the state of each client of RANK
        shared/rows-RANK.npz the same for the part of the states that clients share, if there is one
        manifest.json        round, ranks, job and checksums, also of itself

Each rank writes its rows, rank 0 everything else.  All files but the manifest are written in the
background, while the next rounds run.  Renaming the manifest into place commits the
checkpoint; a folder without a manifest is deleted at the next resume.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from hpcfl.errors import StoreError
from hpcfl.runs.manifest import BEST, RESUME_OLDER, SERVER, Checkpoint, read_files
from hpcfl.store.segment import checksum


class ReadCheckpoint(NamedTuple):
    """What the files of a checkpoint hold; each was read once, and its checksum compared."""

    server: Any
    """The server's state."""
    best: bytes | None
    """The file of the best model so far, if there is one."""
    row_tables: dict[str, bytes]
    """The files of the row tables, by name; ``Table.load`` parses them."""


def read_checkpoint(checkpoint: Checkpoint, template: Any, device: torch.device) -> ReadCheckpoint:
    """Read all files of a checkpoint, tensors to ``device``.

    Args:
        checkpoint: which one.
        template: the dry round's server.
        device: for tensors.

    Raises:
        StoreError: a file is missing, damaged, or of another model.
    """
    folder, contents = checkpoint.folder, dict(read_files(checkpoint))
    server = _nested(_load(folder / SERVER, contents.pop(SERVER), device), template, folder)
    return ReadCheckpoint(server, contents.pop(BEST, None), contents)


def _load(path: Path, content: bytes, device: torch.device) -> dict[str, Tensor]:
    try:
        entries = load_tensors(content)
    except (SafetensorError, ValueError, LookupError, RuntimeError) as e:
        raise StoreError(f"{path}: cannot be read: {e}; {RESUME_OLDER}") from e
    return {name: tensor.to(device) for name, tensor in entries.items()}


def flatten_server(server: Any) -> dict[str, Tensor]:
    """A server's tensors by name; those of a tuple are numbered: "past.0"."""
    tensors: dict[str, Tensor] = {}
    for name, value in zip(server._fields, server, strict=True):
        if isinstance(value, Tensor):
            tensors[name] = value
        else:
            tensors |= {f"{name}.{k}": part for k, part in enumerate(value)}
    return tensors


def _nested(tensors: dict[str, Tensor], template: Any, folder: Path) -> Any:
    path = folder / SERVER
    values: list[Any] = []
    for name, value in zip(template._fields, template, strict=True):
        if isinstance(value, Tensor):
            found = tensors.get(name)
            if found is None or (found.shape, found.dtype) != (value.shape, value.dtype):
                seen = "nothing" if found is None else f"{tuple(found.shape)} {found.dtype}"
                raise StoreError(
                    f"{path}: {name}: found {seen}, expected {tuple(value.shape)} {value.dtype}"
                )
            values.append(found)
        else:
            names = sorted(
                (n for n in tensors if re.fullmatch(rf"{name}\.\d+", n)),
                key=lambda n: int(n.rpartition(".")[2]),
            )
            values.append(tuple(tensors[n] for n in names))
    return type(template)(*values)


def fingerprint(*tensors: Tensor) -> int:
    """The crc32 of the bits of all tensors together, on any device."""
    return checksum(tensor.detach().cpu() for tensor in tensors)
