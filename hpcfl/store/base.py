"""The interface of a store of client states.

A state is a NamedTuple of CPU tensors.  One store serves one rank and holds the states of the
clients that the rank owns.  A later session of the run sees what was written before the last
``commit`` and nothing else.  Clients whose states are written one after the other and are the same
tensors share one copy.

A commit leaves, in the checkpoint's folder, one file per rank that says where every state lies
(``rows-RANK.npz``, see ``hpcfl.store.row_table``); the files it points to are never changed while
any kept checkpoint names them.  It is written while rounds go on: what these write is not part of
it.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hpcfl.store.row_table import Table


class ClientStore(Protocol):
    """The states of one rank's clients."""

    @property
    def low_on_rows(self) -> bool:
        """Whether rows run out soon: the pending checkpoint must be committed, which frees some."""
        ...

    def ensure_rows(self, rows: Sequence[int]) -> None:
        """Have so many rows on the disk, free or not, of every part of the states.

        Raises:
            DiskError: the disk is too small.
        """
        ...

    def ensure_free_rows(self, rows: Sequence[int]) -> None:
        """Have so many free rows on the disk, of every part of the states.

        Raises:
            DiskError: the disk is too small.
        """
        ...

    def prefetch(self, clients: Sequence[int]) -> None:
        """Start to read the states of these clients, which will be asked for next."""
        ...

    def read(self, client: int) -> Any | None:
        """The state that was written last for the client, or None if it never had one.

        Raises:
            StoreError: its row cannot be read or its checksum is wrong.
        """
        ...

    def write(self, client: int, state: Any) -> None:
        """Write the client's new state in the background; its tensors must not be changed later."""
        ...

    def commit(self, folder: Path) -> "list[Future[None]]":
        """Begin to make the states of now durable and to write ``folder/rows-RANK.npz``.

        Once the futures are done everything is flushed and fsynced, or they raise DiskError or
        StoreError.  The commit takes effect when rank 0 renames the checkpoint's manifest into
        place.  No other commit may begin before ``retain``.
        """
        ...

    def retain(self, folders: Iterable[Path]) -> None:
        """Keep the states of these checkpoints; rows that only others name may be reused."""
        ...

    def require_in_place(self) -> None:
        """Refuse to commit where a file that a checkpoint needs was deleted or replaced.

        Raises:
            LostFileError: one was.
        """
        ...

    def restore(self, table: "Table") -> None:
        """Continue with the segments of a checkpoint that as many ranks as now committed.

        ``retain`` is called next.

        Raises:
            StoreError: a segment is missing or damaged, or the owners are others.
        """
        ...

    def restore_from_other_ranks(self, table: "Table") -> None:
        """Copy this rank's states from a checkpoint that another number of ranks committed.

        Raises:
            StoreError: a state is missing or damaged.
            DiskError: the disk is full or fails.
        """
        ...

    def close(self) -> None:
        """Release the files; what was not committed is lost."""
        ...
