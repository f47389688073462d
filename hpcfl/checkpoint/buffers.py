"""Write and read buffers.safetensors: a model's buffers, such as frozen statistics.

No round changes them, so they are written once, at the start, and not to every checkpoint.  A
resume reads this file and not ``model.init``, which may be deleted by then, or on another host.
Running statistics that rounds move are there as the model was made with them.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hpcfl.errors import StoreError, file_error
from hpcfl.io import regular
from hpcfl.io.atomic import write_parts
from hpcfl.io.checked_tensors import pack, unpack


def write(path: Path, buffers: Mapping[str, Tensor]) -> None:
    """Write the buffers; no file if there are none.

    Raises:
        DiskError: the disk is full or fails.
    """
    if buffers:
        write_parts(path, pack(buffers))


def read(path: Path, into: Mapping[str, Tensor]) -> None:
    """Overwrite a model's buffers with those of the file; do nothing if it has none.

    Raises:
        StoreError: the file is missing, damaged or of another model.
        DiskError: the disk fails.
    """
    if not into:
        return
    try:
        found = unpack(regular.read(path))
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror or e}; {_LOST}"
        raise file_error(e, message, StoreError) from e
    except ValueError as e:
        raise StoreError(f"{path}: {e}; {_LOST}") from e
    if _shapes(found) != _shapes(into):
        raise StoreError(f"{path}: is of another model; put back the run's data and code")
    for name, tensor in into.items():
        tensor.copy_(found[name])


def stored_names(path: Path) -> tuple[str, ...]:
    """The names of the buffers in the file; none if there is no file.

    Raises:
        StoreError: the file is damaged.
    """
    try:
        return tuple(unpack(regular.read(path)))
    except FileNotFoundError:
        return ()
    except OSError as e:
        raise file_error(e, f"{path}: cannot be read: {e.strerror or e}", StoreError) from e
    except ValueError as e:
        raise StoreError(f"{path}: {e}; {_LOST}") from e


_LOST = (
    "the model computes other values without its buffers: put the file back, or run the job again "
    "into another directory"
)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
