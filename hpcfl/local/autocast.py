"""Autocast to bfloat16, on processors with and without bfloat16 instructions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
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

    On a GPU torch's autocast always computes ``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` in float16, in
    which small gradients become zero.  Here they keep the precision of their parameters.

    Args:
        device_type: "cpu" or "cuda", where the model computes.
    """
    rnn: AbstractContextManager[object] = nullcontext()
    if device_type == "cuda":
        rnn = rnn_without_autocast(device_type)
    elif not onednn_has_bfloat16():
        rnn = _Replaced((torch._VF.lstm,), _without_onednn)
    with torch.autocast(device_type, torch.bfloat16), rnn:
        yield


def rnn_without_autocast(device_type: str) -> TorchFunctionMode:
    """A context in which recurrent layers compute in the precision of their weights.

    Args:
        device_type: for which autocast is on.
    """
    recurrent = (torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)
    return _Replaced(recurrent, partial(_without_autocast, device_type))


class _Replaced(TorchFunctionMode):
    """A context in which some functions of torch are called by another function.

    Args:
        functions: of torch.
        call: takes one of them and its arguments.
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        call: Callable[[Callable[..., Any], Sequence[Any]], Any],
    ) -> None:
        super().__init__()
        self._functions, self._call = functions, call

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or replace it; recurrent layers give positional arguments alone."""
        if func in self._functions:
            return self._call(func, args)
        return func(*args, **(kwargs or {}))


def _without_autocast(device_type: str, func: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call a recurrent layer with inputs and states of its weights' type."""
    # The arguments of a padded batch are inputs, state, weights and settings; those of a packed one
    # have the batch sizes, which are integers, second.
    weights = next(arg for arg in reversed(args) if isinstance(arg, list | tuple))
    with torch.autocast(device_type, enabled=False):
        return func(*(_as(arg, weights[0].dtype) for arg in args))


def _as(argument: Any, dtype: torch.dtype) -> Any:
    """An argument of a recurrent layer with all its floats of one type."""
    if isinstance(argument, list | tuple):
        return [_as(part, dtype) for part in argument]
    if isinstance(argument, torch.Tensor) and argument.is_floating_point():
        return argument.to(dtype)
    return argument


def _without_onednn(func: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call an LSTM by torch's own cells; the backward pass follows from the forward pass."""
    # Not torch.backends.mkldnn.flags, which sets unrelated flags too and warns about them.
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return func(*args)
    finally:
        torch._C._set_mkldnn_enabled(enabled)
