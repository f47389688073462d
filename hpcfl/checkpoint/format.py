"""Read and write the contents of a checkpoint.

    checkpoints/00000500/
        server.safetensors   the server's state, written by rank 0
        kept.safetensors     what else the coming rounds need, if anything; by rank 0
        best.safetensors     the best model so far, where the job keeps one
        rows-RANK.npz        where the states of the clients of RANK lie, one file a rank
        shared/rows-RANK.npz the same of the part of the states that clients share, if there is one
        manifest.json        round, ranks, job, checksums, its own too; the rename into place is
                             the commit

A folder without a manifest was never committed and is pruned.  All files but the manifest are
written in the background, while the next rounds are played.
"""

import re
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from hpcfl.errors import StoreError
from hpcfl.run_dir.manifest import KEPT, RESUME_OLDER, SERVER, Checkpoint, check_files, read_file


def read_server(checkpoint: Checkpoint, template: Any, device: torch.device) -> Any:
    """The server of a checkpoint, on ``device``; ``template`` is the dry round's server.

    Raises:
        StoreError: a file is missing, damaged, or of another model.
    """
    check_files(checkpoint)
    path = checkpoint.folder / SERVER
    return _nested(_load(path, device), template, path)


def read_kept(checkpoint: Checkpoint, device: torch.device) -> dict[str, Tensor]:
    """What a checkpoint kept beside the server, on ``device``; ``read_server`` checks its file.

    Raises:
        StoreError: the file is damaged.
    """
    return _load(checkpoint.folder / KEPT, device) if KEPT in checkpoint.files else {}


def _load(path: Path, device: torch.device) -> dict[str, Tensor]:
    content = read_file(path)
    try:
        entries = load_tensors(content)
    except (SafetensorError, ValueError, LookupError, RuntimeError) as e:
        raise StoreError(f"{path}: cannot be read: {e}; {RESUME_OLDER}") from e
    return {name: tensor.to(device) for name, tensor in entries.items()}


def flatten_server(server: Any) -> dict[str, Tensor]:
    """A server's tensors by name; those of a tuple get a number: "past.0"."""
    tensors: dict[str, Tensor] = {}
    for name, value in zip(server._fields, server, strict=True):
        if isinstance(value, Tensor):
            tensors[name] = value
        else:
            tensors |= {f"{name}.{k}": part for k, part in enumerate(value)}
    return {name: copied(tensor) for name, tensor in tensors.items()}


def copied(tensor: Tensor) -> Tensor:
    """On the CPU, sharing memory with no other: safetensors refuses that."""
    return tensor.detach().cpu().clone()


def _nested(tensors: dict[str, Tensor], template: Any, path: Path) -> Any:
    values: list[Any] = []
    for name, value in zip(template._fields, template, strict=True):
        if isinstance(value, Tensor):
            found = tensors.get(name)
            if found is None or (found.shape, found.dtype) != (value.shape, value.dtype):
                what = "nothing" if found is None else f"{tuple(found.shape)} {found.dtype}"
                raise StoreError(
                    f"{path}: {name}: found {what}, expected {tuple(value.shape)} {value.dtype}"
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
    """A checksum of the bits of all tensors together."""
    mark = 0
    for tensor in tensors:
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        mark = crc32(content.numpy().data, mark)
    return mark
