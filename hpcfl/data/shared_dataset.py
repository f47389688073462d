"""A data set in memory that the processes of a host share.

The memory has no name in any file system (``memfd_create``): other processes of the same user open
it by its number in its maker's process, ``/proc/PID/fd/NUMBER``.  So nothing is left behind by a
kill, and the size of ``/dev/shm`` is no limit.  Where the free memory does not suffice, an unnamed
file in the folder of temporary files takes its place.  Both are allocated as a whole before they
are written: a lack of space is an error of that call, never a signal (SIGBUS) later.

The pages are mapped copy-on-write, and the memory is sealed: no process can change what others see.
What else a data set consists of, such as its transform, is small, and is pickled.  Here that is
safe: the pickle is written and read by the ranks of one run, and comes from no file.
"""

import fcntl
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.filesize import decimal
from torch import Tensor

from hpcfl.data.base import Dataset
from hpcfl.data.partition import ExampleRows, RowRanges, sizes_of
from hpcfl.io.memory import too_little_memory
from hpcfl.types import Examples

_ALIGNMENT = 4096  # bytes: a page
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE", "F_SEAL_SEAL")
# What pickling and unpickling classes of a user may raise.
_PICKLE_ERRORS = (
    pickle.PickleError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_EACH = "each rank loads its own copy"


class CannotShareError(Exception):
    """Every rank must load the data by itself; the text says why, empty where nobody minds."""


class SharedDataset(NamedTuple):
    """Where a data set is that processes share."""

    path: str
    """Of the memory, or the file; there as long as its maker keeps it open."""
    size: int
    """Bytes of it."""
    parts: bytes
    """Pickled: the fields of the ``Dataset``, views in place of its tensors and rows."""
    note: str
    """For the user, where it is a file; else empty."""

    def map(self) -> Dataset:
        """The data set; writing to its tensors changes this process's pages alone.

        Raises:
            CannotShareError: the memory cannot be mapped here, or the transform cannot be made.
        """
        try:
            parts: dict[str, Any] = pickle.loads(self.parts)  # noqa: S301  # of a rank of this run
        except _PICKLE_ERRORS as error:
            raise CannotShareError(
                f"its transform cannot be made from that of another rank ({error}); {_EACH}"
            ) from error
        try:
            with Path(self.path).open("rb") as file:
                memory = mmap.mmap(
                    file.fileno(),
                    self.size,
                    flags=mmap.MAP_PRIVATE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
        except (OSError, ValueError) as error:
            raise CannotShareError(f"its memory cannot be shared ({error}); {_EACH}") from error
        tensor = _Memory(memory).tensor
        for name, part in parts.items():
            if isinstance(part, _Examples):
                parts[name] = Examples(tensor(part.inputs), tensor(part.labels))
            elif isinstance(part, _Clients):
                parts[name] = part.rows_of_clients(tensor)
        return Dataset(**parts)


def share(dataset: Dataset, stack: ExitStack) -> SharedDataset:
    """Copy a data set into memory that other processes can map.

    Args:
        dataset: in memory of this process.
        stack: keeps the copy open, until the others have mapped it.

    Raises:
        CannotShareError: its examples are in a file, or it is of a kind that cannot be shared, or
            there is no space for it.
    """
    if dataset.mapped:
        raise CannotShareError
    if type(dataset) is not Dataset:
        raise CannotShareError(
            f"its class {type(dataset).__name__} is not hpcfl's Dataset; {_EACH}"
        )
    layout = _Layout()
    parts = {field.name: getattr(dataset, field.name) for field in fields(dataset)}
    for name in ("train", "test"):
        if parts[name] is not None:
            parts[name] = _Examples(*map(layout.view, parts[name]))
    for name in ("natural", "natural_tests"):
        if parts[name] is not None:
            parts[name] = layout.clients(parts[name])
    try:
        pickled = pickle.dumps(parts)
    except _PICKLE_ERRORS as error:
        raise CannotShareError(
            f"a transform cannot be sent to other ranks ({error}): it must be a function or an "
            f"object of a class at the top of a module; {_EACH}"
        ) from error
    fd, note = _allocate(layout.size, stack)
    try:
        _write(fd, layout.blocks.values())
    except OSError as error:
        raise _no_space(layout.size, error) from error
    return SharedDataset(f"/proc/{os.getpid()}/fd/{fd}", layout.size, pickled, note)


class _View(NamedTuple):
    """A tensor in the memory."""

    block: tuple[int, int]
    """Offset and size, in bytes, of what it is a view of."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Of its first element within the block, in elements."""


class _Examples(NamedTuple):
    """Examples in the memory."""

    inputs: _View
    labels: _View


class _Clients(NamedTuple):
    """The rows of clients, in the memory."""

    consecutive: bool
    """Whether they are ``RowRanges``."""
    rows: _View
    """Of all clients, one after the other; or, of ``RowRanges``, the first of each client."""
    sizes: _View

    def rows_of_clients(self, tensor: Callable[[_View], Tensor]) -> Sequence[ExampleRows]:
        """The rows of each client."""
        rows, sizes = tensor(self.rows).numpy(), tensor(self.sizes).numpy()
        if self.consecutive:
            return RowRanges(rows, sizes)
        return np.split(rows, np.cumsum(sizes)[:-1]) if len(sizes) else []


class _Memory:
    """The mapped memory; views of one block share a storage, as they did where they were made."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._blocks: dict[tuple[int, int], Tensor] = {}

    def tensor(self, view: _View) -> Tensor:
        """The tensor, whose storage keeps the memory mapped."""
        offset, size = view.block
        if not size:
            return torch.empty(view.shape, dtype=view.dtype)
        if view.block not in self._blocks:
            self._blocks[view.block] = torch.frombuffer(
                self._memory, dtype=torch.uint8, count=size, offset=offset
            )
        storage = self._blocks[view.block].untyped_storage()
        made = torch.empty(0, dtype=view.dtype)
        return made.set_(storage, view.offset, view.shape, view.stride)


class _Layout:
    """Lays out the memory behind tensors, each piece of it once."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, Tensor]] = {}
        """Offset and content, uint8, by address."""
        self.size = 0

    def view(self, tensor: Any) -> _View:
        """Add a tensor.

        Raises:
            CannotShareError: it is no plain tensor in memory.
        """
        if not isinstance(tensor, Tensor):  # in a file: nothing to share
            raise CannotShareError
        if (
            type(tensor) is not Tensor
            or tensor.device.type != "cpu"
            or tensor.layout != torch.strided
            or tensor.requires_grad
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            raise CannotShareError(
                f"a {type(tensor).__name__} on {tensor.device} ({tensor.layout}) cannot be shared "
                f"by ranks; {_EACH}"
            )
        storage = tensor.untyped_storage()
        size, at = storage.nbytes() if tensor.numel() else 0, storage.data_ptr()
        if size and at not in self.blocks:
            self.blocks[at] = self.size, torch.empty(0, dtype=torch.uint8).set_(storage)
            self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
        return _View(
            (self.blocks[at][0] if size else 0, size),
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
        )

    def clients(self, clients: Sequence[ExampleRows]) -> _Clients:
        """Add the rows of clients.

        Raises:
            CannotShareError: they are no arrays of int64.
        """
        if isinstance(clients, RowRanges):
            rows = np.array(clients.starts)
        elif all(_is_rows(rows) for rows in clients):
            rows = np.concatenate([np.empty(0, dtype=np.int64), *clients])
        else:
            raise CannotShareError(f"the rows of its clients are no arrays of int64; {_EACH}")
        both = (torch.from_numpy(part) for part in (rows, np.array(sizes_of(clients))))
        return _Clients(isinstance(clients, RowRanges), *map(self.view, both))


def _is_rows(rows: Any) -> bool:
    return type(rows) is np.ndarray and rows.dtype == np.int64 and rows.ndim == 1


def _allocate(size: int, stack: ExitStack) -> tuple[int, str]:
    """Memory, or else a file, of so many bytes that has no name.

    Returns:
        Its number in this process, and a note if it is a file.

    Raises:
        CannotShareError: there is no space for it.
    """
    if too_little_memory(size) is None:
        fd = os.memfd_create("hpcfl-data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        stack.callback(os.close, fd)
        with suppress(OSError):
            os.posix_fallocate(fd, 0, size)
            return fd, ""
        os.ftruncate(fd, 0)
    try:
        fd = stack.enter_context(tempfile.TemporaryFile()).fileno()  # noqa: SIM115
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise _no_space(size, error) from error
    return fd, (
        f"the free memory does not hold {decimal(size)} more: the ranks of this host share a file "
        f"in {tempfile.gettempdir()} (TMPDIR) instead, and may wait for its disk"
    )


def _no_space(size: int, error: OSError) -> CannotShareError:
    return CannotShareError(
        f"neither the memory nor {tempfile.gettempdir()} (TMPDIR) has {decimal(size)} for a copy "
        f"that the ranks of this host share ({error.strerror}); {_EACH}"
    )


def _write(fd: int, blocks: Iterable[tuple[int, Tensor]]) -> None:
    """Write the blocks, and seal memory against any change."""
    with os.fdopen(fd, "wb", closefd=False) as file:
        for offset, content in blocks:
            file.seek(offset)
            file.write(content.numpy().data)
    with suppress(OSError, AttributeError):  # a file has no seals, nor a name to open it by
        seals = sum(getattr(fcntl, name) for name in _SEALS)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
