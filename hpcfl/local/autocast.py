"""Autocast to bfloat16, on processors with and without bfloat16 instructions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def onednn_has_bfloat16() -> bool:
    """Whether oneDNN has bfloat16 kernels for this processor.

    It has none on a processor with AVX2 alone, or under ``ONEDNN_MAX_CPU_ISA=AVX2``.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@contextmanager
def autocast_bfloat16(device_type: str) -> Iterator[None]:
    """Run the block with ``torch.autocast`` to bfloat16, on any processor.

    Where oneDNN has no bfloat16 kernels, torch uses kernels of its own.  Only ``nn.LSTM`` calls
    oneDNN nevertheless and fails; on such processors it runs without oneDNN.

    Args:
        device_type: "cpu" or "cuda", where the model computes.
    """
    with torch.autocast(device_type, torch.bfloat16):
        if device_type == "cpu" and not onednn_has_bfloat16():
            with _LstmWithoutOneDnn():
                yield
        else:
            yield


class _LstmWithoutOneDnn(TorchFunctionMode):
    """Runs ``nn.LSTM`` by torch's own cells; the backward pass follows from the forward pass."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, without oneDNN if it is the LSTM."""
        if func is not torch._VF.lstm:
            return func(*args, **(kwargs or {}))
        # Not torch.backends.mkldnn.flags, which sets unrelated flags too and warns about them.
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch._C._set_mkldnn_enabled(enabled)
