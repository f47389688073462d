"""The store of algorithms whose clients keep no state."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import StoreError
from hpcfl.store import row_table
from hpcfl.store.base import ClientStore


class NullStore(ClientStore):
    """Stores nothing; its snapshots are empty row tables."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._executor = ThreadPoolExecutor(1, "store-snapshot")

    def load(self, client: int) -> Any | None:
        return None

    def save(self, client: int, state: Any) -> None:
        """Drop the state, which has no fields."""

    def snapshot(self, folder: Path) -> "list[Future[None]]":
        none = np.zeros(0, np.int64)
        table = row_table.Rows(none, none, none, none, ())
        return [self._executor.submit(row_table.write, folder, self._rank, table)]

    def retain(self, folders: Iterable[Path]) -> None:
        """Do nothing: a checkpoint has no rows."""

    def restore(
        self, table: row_table.Table, ranks: int, older: Sequence[row_table.Table] = ()
    ) -> None:
        if table.clients.size:
            raise StoreError(
                f"{table.paths[0]}: the checkpoint holds {table.clients.size} client states, "
                "expected none; it was made by another algorithm: resume the job that made it"
            )

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)
