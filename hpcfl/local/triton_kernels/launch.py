"""How the Triton kernels are launched, on a GPU or in Triton's interpreter."""

from typing import Any

import torch
import triton
from torch import Tensor

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels are interpreted on the CPU (TRITON_INTERPRET=1), as tests do."""


def launch(warps: int, stages: int) -> dict[str, Any]:
    """The options of a launch."""
    if INTERPRETED:
        return {}
    # Fused multiply-adds are part of the bits, and versions of Triton differ in their default.
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}


def packed(tensor: Tensor) -> Tensor:
    """The tensor, contiguous and at an address that is a multiple of 16 bytes, as all kernels get.

    For other addresses Triton compiles another kernel, which may sum in another order.  Parameters
    are views of the clients' flat vectors, at any address; new tensors are at multiples of 16, also
    in the memory of a CUDA graph, which therefore holds the kernels of the calls before it.
    """
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def precision() -> str:
    """How float32 is multiplied: as torch's matrix products are, in tf32 or in float32."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def check_dtype(tensor: Tensor) -> None:
    """Refuse what no kernel is written for.

    Raises:
        NotImplementedError: the numbers are neither float32 nor bfloat16.
    """
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise NotImplementedError(
            f"the Triton kernels take float32 and bfloat16, not {str(tensor.dtype)[6:]}"
        )
