"""Restore the settings of a process that rounds depend on, or that a run sets for itself.

They are torch's threads, default type and device, precision, deterministic mode and fast path of
transformers, and the current folder.  A callback may change them, on which later rounds would
depend; and a run of ``hpcfl.run`` sets some, which a notebook's own models must not be trained with
afterwards.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch.utils import deterministic


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a str is compared faster
    except OSError:  # it was deleted, is stale on a network file system, or may not be read
        return None


def _set_folder(path: str | None) -> None:
    if path is not None:
        with suppress(OSError):  # it is out of reach by now: there is no way back
            os.chdir(path)


def _default_device() -> torch.device | None:
    found = torch.get_default_device()
    return None if found == torch.device("cpu") else found  # None: torch's own default


def _gpu() -> int | None:
    begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.current_device() if begun else None


def _set_gpu(index: int | None) -> None:
    if index is not None:
        torch.cuda.set_device(index)


def _flushes_denormals() -> bool:
    return sys.float_info.min / _TWO == 0


_TWO = 2.0  # a variable, as Python divides constants once and for all
_SETTINGS: Sequence[tuple[Callable[[], Any], Callable[[Any], Any]]] = (
    (_folder, _set_folder),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_default_device, torch.set_default_device),
    (_gpu, _set_gpu),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (_flushes_denormals, torch.set_flush_denormal),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *(
        (partial(getattr, torch.backends.cudnn, name), partial(setattr, torch.backends.cudnn, name))
        for name in ("benchmark", "deterministic", "allow_tf32")
    ),
    (
        partial(getattr, deterministic, "fill_uninitialized_memory"),
        partial(setattr, deterministic, "fill_uninitialized_memory"),
    ),
)
"""How each setting is read and set."""


@contextmanager
def settings_restored() -> Iterator[None]:
    """Leave the settings of the process as they were before the block."""
    before = [_value(read) for read, _ in _SETTINGS]
    try:
        yield
    finally:
        for (read, set_value), value in zip(_SETTINGS, before, strict=True):
            if value is not _UNREADABLE and _value(read) != value:
                set_value(value)


_UNREADABLE = object()


def _value(read: Callable[[], Any]) -> Any:
    """The value of a setting; torch does not tell one that was set by its newer interface."""
    try:
        return read()
    except RuntimeError:
        return _UNREADABLE
