"""What the engine asks of the home of client states.

A state is a NamedTuple of CPU tensors.  One store serves one rank and holds the states of the
clients that rank owns.  Nothing staged is visible to a later life of the run until ``commit``.

A commit leaves, in the checkpoint's folder, one file per rank that says where every state lies
(``rows-RANK.npz``, see ``hpcfl.store.rows``); the files it points to are never changed while any
kept checkpoint names them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from hpcfl.store.rows import Table


class Field(NamedTuple):
    """One tensor of a state."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class StateSchema(NamedTuple):
    """The shape of a state: its type and its fields, found by the dry round."""

    type: type[Any]
    fields: tuple[Field, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one client's state."""
        return sum(torch.Size(f.shape).numel() * f.dtype.itemsize for f in self.fields)


class ClientStore(Protocol):
    """The states of one rank's clients."""

    def read(self, client: int) -> Any | None:
        """The client's latest staged state, or None if it never had one.

        Raises:
            StoreError: its row cannot be read or its checksum is wrong.
        """
        ...

    def stage(self, client: int, state: Any) -> None:
        """Take over the client's new state; the caller does not change the tensors afterwards."""
        ...

    def commit(self, folder: Path) -> None:
        """Make all staged states durable and write ``folder/rows-RANK.npz``.

        On return everything is flushed and fsynced.  The commit takes effect when rank 0 renames
        the checkpoint's manifest, which is not the store's business.
        """
        ...

    def keep(self, folders: Iterable[Path]) -> None:
        """These committed checkpoints are kept; rows that only others name may be reused."""
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
