"""The store of algorithms whose clients keep nothing."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import StoreError
from hpcfl.store import row_table


class NullStore:
    """Keeps nothing; its commits say so."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._behind = ThreadPoolExecutor(1, "store-commit")

    low_on_rows = False
    """There is nothing to run short of."""

    def ensure_rows(self, rows: Sequence[int]) -> None:
        """Nothing needs room."""

    def ensure_free_rows(self, rows: Sequence[int]) -> None:
        """Nothing needs room."""

    def prefetch(self, clients: Sequence[int]) -> None:
        """Nothing is to be fetched."""

    def read(self, client: int) -> Any | None:
        """None: no client ever has a state."""
        return None

    def write(self, client: int, state: Any) -> None:
        """Forget the empty state."""

    def commit(self, folder: Path) -> "list[Future[None]]":
        """Begin to write an empty ``folder/rows-RANK.npz``, durably.

        The future raises StoreError if the disk is full or fails.
        """
        none = np.zeros(0, np.int64)
        table = row_table.Rows(none, none, none, none, ())
        return [self._behind.submit(row_table.write, folder, self._rank, table)]

    def retain(self, folders: Iterable[Path]) -> None:
        """Nothing lies anywhere."""

    def require_in_place(self) -> None:
        """No file is needed."""

    def restore(self, table: row_table.Table) -> None:
        """Check that the checkpoint holds no states.

        Raises:
            StoreError: it does, so another algorithm made it.
        """
        if table.clients.size:
            raise StoreError(
                f"{table.paths[0]}: the checkpoint holds {table.clients.size} client states, "
                "expected none; it was made by another algorithm: resume the job that made it"
            )

    def restore_from_other_ranks(self, table: row_table.Table) -> None:
        """Check that the checkpoint holds no states.

        Raises:
            StoreError: it does, so another algorithm made it.
        """
        self.restore(table)

    def close(self) -> None:
        """End what was begun."""
        self._behind.shutdown(cancel_futures=True)
