"""The interface of a store of client states.

``hpcfl.start.components.client_store`` makes the store that a job asks for.
``hpcfl.clients.client_states`` loads and saves states through it in every round, and
``hpcfl.checkpoint.writer`` calls it for checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcfl.store.row_table import Table


class ClientStore(ABC):
    """The states of the clients that one rank owns.

    A state is a NamedTuple of tensors with the fields of one ``hpcfl.store.schema.StateSchema``.
    ``save`` takes those of the run's device, and ``load`` returns them in the CPU's memory; on a
    GPU ``hpcfl.store.device`` is in front, and returns some on the device.  One thread calls all
    methods, in this order:

        restore; retain                 at a resume
        prefetch; load; save            in every round, for the round's clients
        snapshot                        when a checkpoint begins
        prefetch; load; save            in the rounds that continue while it is written
        require_in_place                when the futures of ``snapshot`` are done, on every rank
        retain                          when rank 0 has renamed the checkpoint's manifest
        close                           at the end, also after an error

    A store of your own implements the six abstract methods; the others have defaults for a store
    that holds all states in memory.  What it must guarantee:

    - A checkpoint stays readable.  ``snapshot`` writes ``rows-RANK.npz``, which names the segment
      file and the row of every state (``hpcfl.store.row_table``).  Until ``retain`` leaves a
      checkpoint out, no row that it names may change: a run that is killed resumes from it.
    - A snapshot is of one moment.  ``save`` may be called while the snapshot is written, and must
      not change it.
    - Equal states are stored once.  Where consecutive calls of ``save`` pass the very same
      tensors, as the clients of a round do with the model that they received, one copy is kept.
    """

    @abstractmethod
    def load(self, client: int) -> Any | None:
        """The state that was saved last for the client, or None if there is none.

        Raises:
            StoreError: its row cannot be read, or its checksum is wrong.
        """

    @abstractmethod
    def save(self, client: int, state: Any) -> None:
        """Replace the client's state.

        The store may still read the tensors later, so the caller must not change them.

        Raises:
            DiskError: the disk is full or fails, now or when an earlier state was written.
        """

    @abstractmethod
    def snapshot(self, folder: Path) -> "list[Future[None]]":
        """Begin to write all states, as they are now, and their row table into ``folder``.

        Returns:
            Futures that are done once everything is fsynced.  They raise DiskError or StoreError.
            ``retain`` must be called before the next snapshot.
        """

    @abstractmethod
    def retain(self, folders: Iterable[Path]) -> None:
        """Keep the rows that the checkpoints in ``folders`` name; all others may be reused.

        Args:
            folders: of earlier calls of ``snapshot``, or of the tables of ``restore``.
        """

    @abstractmethod
    def restore(self, table: "Table", ranks: int, older: "Sequence[Table]" = ()) -> None:
        """Take this rank's states from a checkpoint; ``retain`` must be called next.

        A store on disk continues to use the segments of the checkpoint where the same number of
        ranks wrote them, and copies its clients' states otherwise.

        Args:
            table: the row table of all ranks that wrote the checkpoint.
            ranks: how many ranks the run has now.
            older: the tables of the older checkpoints that are kept, of this rank at least.

        Raises:
            StoreError: a segment is missing or damaged, or is of other clients.
            DiskError: the disk is full or fails.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the files and end the threads; states without a snapshot are lost."""

    def prefetch(self, clients: Sequence[int]) -> None:  # noqa: B027
        """Begin to read the states of these clients, which will be loaded next."""

    def require_in_place(self) -> None:  # noqa: B027
        """Refuse to commit a checkpoint where a file that it needs was deleted or replaced.

        Raises:
            LostFileError: one was.
        """
