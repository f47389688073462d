"""Safetensors files with a checksum of names, dtypes, shapes and values in their metadata."""

from collections.abc import Mapping
from zlib import crc32

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from hpcfl.io.files import parse_json
from hpcfl.io.tensor_file import bytes_of, on_cpu, parts_of

_CHECK = "crc32"


def pack(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """The content of a file with these tensors, in parts; that of tensors on the CPU is theirs."""
    own = {name: on_cpu(tensor) for name, tensor in tensors.items()}
    return parts_of(own, {_CHECK: _checksum(own)})


def unpack(content: bytes) -> dict[str, Tensor]:
    """Read the tensors from what ``pack`` returned, to the CPU.

    Raises:
        ValueError: the content is damaged.
    """
    try:
        tensors = load(content)
        # The first eight bytes are the header's length; ``load`` has checked that it is right.
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
        total = crc32(bytes_of(tensor), total)
    return str(total)
