"""Write tensors as a safetensors file from their own memory, without a copy of them."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# The names of dtypes, in the reverse of the order that files have: as the package writes them.
_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
_ORDER = {dtype: place for place, dtype in enumerate(reversed(_DTYPES))}
_ALIGNMENT = 8  # bytes, of the first tensor


def on_cpu(tensor: Tensor) -> Tensor:
    """The tensor, row-major and on the CPU; itself if it is, else a copy."""
    return tensor.detach().cpu().contiguous()


def parts_of(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> list[memoryview]:
    """The header of a file with these tensors, then the memory of each.

    Together they are the bytes that ``safetensors.torch.save`` returns.

    Args:
        tensors: by name; row-major and on the CPU.
        metadata: texts for the header.

    Raises:
        KeyError: the format has no such dtype.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    names, end = sorted(tensors, key=lambda name: (_ORDER[tensors[name].dtype], name)), 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    first = memoryview(len(text).to_bytes(8, "little") + text)
    return [first, *(bytes_of(tensors[name]) for name in names)]


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a tensor that is row-major and on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
