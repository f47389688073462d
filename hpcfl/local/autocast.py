"""Autocast to bfloat16, on processors with and without bfloat16 instructions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

    On a GPU torch's autocast runs the recurrent layers ``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` in
    float16, whatever type it is told, and small gradients would vanish there.  They run in the
    parameters' own precision instead.

    Args:
        device_type: "cpu" or "cuda", where the model computes.
    """
    rnn: AbstractContextManager[object] = nullcontext()
    if device_type == "cuda":
        rnn = RnnWithoutAutocast(device_type)
    elif not onednn_has_bfloat16():
        rnn = _LstmWithoutOneDnn()
    with torch.autocast(device_type, torch.bfloat16), rnn:
        yield


class RnnWithoutAutocast(TorchFunctionMode):
    """Runs ``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` in the precision of their weights.

    Args:
        device_type: for which autocast is on.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``; of a recurrent layer, with inputs of its weights' type."""
        if func not in _RECURRENT:
            return func(*args, **(kwargs or {}))
        # The arguments of a padded batch are inputs, state, weights and settings; those of a packed
        # one have the batch sizes, which are integers, second.
        weights = next(arg for arg in reversed(args) if isinstance(arg, list | tuple))
        dtype = weights[0].dtype
        with torch.autocast(self._device_type, enabled=False):
            return func(*(_as(arg, dtype) for arg in args), **(kwargs or {}))


_RECURRENT = (torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)


def _as(argument: Any, dtype: torch.dtype) -> Any:
    """An argument of a recurrent layer with all its floats of one type."""
    if isinstance(argument, list | tuple):
        return [_as(part, dtype) for part in argument]
    if isinstance(argument, torch.Tensor) and argument.is_floating_point():
        return argument.to(dtype)
    return argument


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
