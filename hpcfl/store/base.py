"""What the engine asks of the home of client states.

A state is a NamedTuple of CPU tensors.  One store serves one rank and holds the states of the
clients that rank owns.  Nothing staged is visible to a later life of the run until ``commit``.
Clients whose states are staged one after the other and are the same tensors share one copy.

A commit leaves, in the checkpoint's folder, one file per rank that says where every state lies
(``rows-RANK.npz``, see ``hpcfl.store.row_table``); the files it points to are never changed while any
kept checkpoint names them.  It is written while rounds go on: what they stage is not part of it.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hpcfl.store.row_table import Table


class Field(NamedTuple):
    """One tensor of a state."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    shared: bool = False
    """Whether all clients of a round keep one and the same tensor, the model that they received."""

    @property
    def bytes(self) -> int:
        """Bytes of one tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def check(self, tensor: Tensor) -> None:
        """Compare a tensor's dtype and shape.

        Raises:
            ValueError: they are others.
        """
        if tensor.dtype != self.dtype or tensor.shape != self.shape:
            raise ValueError(
                f"state field {self.name!r}: got {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {self.dtype} {self.shape}"
            )


class StateSchema(NamedTuple):
    """The shape of a state: its type and its fields, found by the dry round."""

    type: Callable[..., Any]
    fields: tuple[Field, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one client's state."""
        return sum(field.bytes for field in self.fields)

    @property
    def own(self) -> "StateSchema":
        """The part of a state that is its client's alone."""
        return StateSchema(part, tuple(f for f in self.fields if not f.shared))

    @property
    def shared(self) -> "StateSchema":
        """The part of a state that the clients of a round have in common."""
        return StateSchema(part, tuple(f for f in self.fields if f.shared))

    def narrowed(self, dtype: torch.dtype) -> "StateSchema":
        """With every field of wider floating-point numbers in ``dtype``."""
        fields = (
            f._replace(dtype=dtype)
            if f.dtype.is_floating_point and f.dtype.itemsize > dtype.itemsize
            else f
            for f in self.fields
        )
        return StateSchema(self.type, tuple(fields))

    def split(self, state: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The own and the shared part of a state."""
        pairs = list(zip(self.fields, state, strict=True))
        return part(*(t for f, t in pairs if not f.shared)), part(
            *(t for f, t in pairs if f.shared)
        )

    def join(self, own: Any, shared: Any) -> Any:
        """The state of two parts, as ``split`` makes them."""
        left, right = iter(own), iter(shared)
        return self.type(*(next(right if f.shared else left) for f in self.fields))


def part(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The type of a part of a state: takes its tensors one by one, as a state's type does."""
    return tensors


class ClientStore(Protocol):
    """The states of one rank's clients."""

    @property
    def short(self) -> bool:
        """Whether a commit had better be finished, so that ``keep`` can let go of old rows."""
        ...

    def reserve(self, rows: Sequence[int]) -> None:
        """Have so many rows on the disk, free or not, of every part of the states.

        Raises:
            StoreError: the disk is too small.
        """
        ...

    def provide(self, rows: Sequence[int]) -> None:
        """Have so many free rows on the disk, of every part of the states.

        Raises:
            StoreError: the disk is too small.
        """
        ...

    def expect(self, clients: Sequence[int]) -> None:
        """These clients are read next: their states can be fetched meanwhile."""
        ...

    def read(self, client: int) -> Any | None:
        """The client's latest staged state, or None if it never had one.

        Raises:
            StoreError: its row cannot be read or its checksum is wrong.
        """
        ...

    def stage(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards."""
        ...

    def commit(self, folder: Path) -> "list[Future[None]]":
        """Begin to make the states of now durable and to write ``folder/rows-RANK.npz``.

        Once the futures are done everything is flushed and fsynced, or they raise StoreError.  The
        commit takes effect when rank 0 renames the checkpoint's manifest, which is not the store's
        business; until then, or until ``keep``, no other may begin.
        """
        ...

    def keep(self, folders: Iterable[Path]) -> None:
        """These committed checkpoints are kept; rows that only others name may be reused."""
        ...

    def require_in_place(self) -> None:
        """Refuse to commit where a file that a checkpoint needs was deleted or replaced.

        Raises:
            LostFileError: one was.
        """
        ...

    def adopt(self, table: "Table") -> None:
        """Go on with the segments of a checkpoint that as many ranks as now committed.

        ``keep`` comes next.

        Raises:
            StoreError: a segment is missing or damaged, or the owners are others.
        """
        ...

    def rehome(self, table: "Table") -> None:
        """Copy this rank's states from a checkpoint that another number of ranks committed.

        Raises:
            StoreError: a state is missing or damaged, or the disk is full.
        """
        ...

    def close(self) -> None:
        """Release the files; what was not committed is lost."""
        ...
