"""Add to an error the client and the round in which it was raised."""

from collections.abc import Iterator
from contextlib import contextmanager

from hpcfl.errors import (
    ClientError,
    HookError,
    HpcflError,
    as_disk_error,
    described,
    disk_errors,
    hint,
    place,
)
from hpcfl.local.step import ClientTask


class client_errors:
    """Lets an error say which client, round and stage it came from.

    No generator, which takes longer: every client enters it.
    """

    def __init__(self, task: ClientTask, stage: str) -> None:
        self._task, self._stage = task, stage

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HpcflError):
            if disk := as_disk_error(error):
                raise disk from error
            task = self._task
            raise ClientError(task.client_id, task.round + 1, None, self._stage) from error


@contextmanager
def round_errors(round: int) -> Iterator[None]:
    """Let an error of a class of the user's say which round, counted as the log does, it is of.

    Raises:
        HookError: the block raised, in a line of the user's.
        DiskError: the disk is full or fails.
    """
    try:
        with disk_errors():
            yield
    except HpcflError:
        raise
    except Exception as e:
        if not place(e):  # a fault of the program keeps its traceback
            raise
        raise HookError(f"round {round}{described(e)}{hint()}") from e
