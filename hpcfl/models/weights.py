"""Read weights from untrusted files, without running code in them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from hpcfl.errors import DataError, JobError, file_error
from hpcfl.io.files import read_array
from hpcfl.io.regular import check_regular

_WRAPPERS = ("state_dict", "model")  # keys under which training programs save a state dict


def read_weights(path: Path) -> Tensor | dict[str, Tensor]:
    """A flat vector from a .npy; tensors by name from any other file.

    The names in a .pth or .pt are those of its state dict, which may be under "state_dict" or
    "model", without the prefix "module." of parallel training.

    Raises:
        JobError: the file is missing or damaged, holds no plain weights, or is of another kind.
    """
    if not path.exists():
        raise JobError(f"model.init: {path}: there is no such file")
    if path.suffix == ".npy":
        return _vector(path)
    if path.suffix == ".safetensors":
        return _named(_read(path, lambda: load_file(path)))
    if path.suffix in (".pth", ".pt"):
        content = _read(path, lambda: _load(path))
        for wrapper in _WRAPPERS:
            if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
                content = content[wrapper]
        if not isinstance(content, Mapping):
            raise JobError(
                f"model.init: {path}: holds a {type(content).__name__}, expected a state dict"
            )
        return _named(content)
    raise JobError(
        f"model.init: {path}: expected a .npy, .safetensors, .pth or .pt file; `hpcfl export DIR "
        "--state-dict F.safetensors` writes one of a run's model"
    )


def _read(path: Path, load: Callable[[], Any]) -> Any:
    try:
        check_regular(path)
        return load()
    except OSError as error:
        reason = error.strerror or error
        message = f"model.init: {path}: not a readable {path.suffix} file: {reason}"
        raise file_error(error, message, JobError) from error
    except Exception as error:  # what a damaged file raises depends on where the damage is
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        if "weights_only" in str(error):  # torch's own text advises to run the code in the file
            reason = "it holds more than weights, or is damaged; save the model's state_dict()"
        raise JobError(
            f"model.init: {path}: not a readable {path.suffix} file: {reason}"
        ) from error


def _load(path: Path) -> Any:
    # Only the archives of today's torch.save can be mapped.
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))


def _named(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The plain tensors; other entries, such as an epoch, are no weights."""
    return {
        name.removeprefix("module."): value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Tensor) and _plain(value)
    }


def _plain(tensor: Tensor) -> bool:
    """Whether it is a dense tensor in memory, neither sparse nor quantised."""
    strided = tensor.layout is torch.strided and not tensor.is_quantized
    return strided and tensor.device.type == "cpu"


def _vector(path: Path) -> Tensor:
    """The flat vector in a .npy, float64."""
    try:
        vector = read_array(path)
    except DataError as error:
        raise JobError(f"model.init: {error}") from error
    if vector.dtype.kind != "f" or vector.ndim != 1:
        raise JobError(
            f"model.init: {path}: found {vector.dtype} of shape {vector.shape}, expected a flat "
            "vector of floats"
        )
    return torch.from_numpy(vector.astype(np.float64))
