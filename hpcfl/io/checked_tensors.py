"""Safetensors files whose metadata hold a checksum of names, dtypes, shapes and values."""

from collections.abc import Mapping
from zlib import crc32

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hpcfl.io.files import parse_json

_CHECK = "crc32"


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """The tensors as the content of a file."""
    # Apart from each other and row-major, or safetensors refuses them.
    layout = torch.contiguous_format
    own = {
        name: tensor.detach().cpu().clone(memory_format=layout) for name, tensor in tensors.items()
    }
    return save(own, {_CHECK: _checksum(own)})


def unpack(content: bytes) -> dict[str, Tensor]:
    """The tensors that ``pack`` was given, on the CPU.

    Raises:
        ValueError: the content is damaged; the text says how.
    """
    try:
        tensors = load(content)
        # Its length stands in the first eight bytes, and is right, or `load` would have refused it.
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        expected = header.get("__metadata__", {}).get(_CHECK)
    except (SafetensorError, ValueError, LookupError, RuntimeError, AttributeError) as e:
        raise ValueError(f"cannot be read: {e}") from e
    found = _checksum(tensors)
    if found != expected:
        raise ValueError(f"checksum {found}, expected {expected}")
    return tensors


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    total = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        total = crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode(), total)
        total = crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return str(total)
