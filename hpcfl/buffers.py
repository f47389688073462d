"""buffers.safetensors: what a model computes with besides its parameters: frozen statistics.

No round changes it, so it is written once, at the start, and no checkpoint holds it.  A resume
takes it from nowhere else: the file of ``model.init`` may be gone, or on another host.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hpcfl.checkpoint import fingerprint
from hpcfl.errors import StoreError
from hpcfl.store.durable import write_file

_CHECK = "crc32"


def write(path: Path, buffers: Mapping[str, Tensor]) -> None:
    """Keep the buffers; no file where there are none.

    Raises:
        StoreError: the disk is full or fails.
    """
    if buffers:
        # Apart from each other and row-major, or safetensors refuses them.
        layout = torch.contiguous_format
        own = {name: tensor.cpu().clone(memory_format=layout) for name, tensor in buffers.items()}
        write_file(path, save(own, {_CHECK: _checksum(own)}))


def read(path: Path, into: Mapping[str, Tensor]) -> None:
    """Overwrite a model's buffers with those of the file; nothing is read where it has none.

    Raises:
        StoreError: the file is missing, damaged or of another model.
    """
    if not into:
        return
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            mark = (file.metadata() or {}).get(_CHECK)
    except (OSError, SafetensorError, ValueError, LookupError, RuntimeError) as e:
        raise StoreError(f"{path}: cannot be read: {e}; {_LOST}") from e
    if mark != _checksum(found):
        raise StoreError(f"{path}: checksum {_checksum(found)}, expected {mark}; {_LOST}")
    if _shapes(found) != _shapes(into):
        raise StoreError(f"{path}: is of another model; put back the run's data and code")
    for name, tensor in into.items():
        tensor.copy_(found[name])


_LOST = (
    "it holds what the model computes with besides its parameters: put it back, or run the job "
    "again into another directory"
)


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    return str(fingerprint(*(tensors[name] for name in sorted(tensors))))


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
