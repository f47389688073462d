"""Add to an error the client and the round in which it was raised."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from hpcfl.clients.task import ClientTask
from hpcfl.errors import (
    BrokenRuleError,
    ClientError,
    HookError,
    HpcflError,
    as_disk_error,
    convert_errors,
    described,
    traceback_hint,
    user_code_location,
)


class client_errors:
    """Context manager that raises an error of its block as a ``ClientError``.

    Errors of hpcfl's own classes pass unchanged, and disk errors become ``DiskError``.
    It adds the client, the round and the stage, and the local step where the block sets ``step``.
    A class is faster than a generator here, and every client of every round enters it.
    """

    def __init__(self, task: ClientTask, stage: str) -> None:
        self._task, self._stage = task, stage
        self.step: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HpcflError):
            if disk := as_disk_error(error):
                raise disk from error
            task = self._task
            raise ClientError(task.client_id, task.round + 1, self.step, self._stage) from error


@contextmanager
def round_errors(round: int) -> Iterator[None]:
    """Add the round, counted as the log does, to an error of a class of the user's.

    Raises:
        HookError: the block raised, in a line of the user's, or a hook breaks a rule.
        DiskError: the disk is full or fails.
    """

    def convert(e: Exception) -> HookError | None:
        # An error in hpcfl itself is a bug: it keeps its traceback.
        if user_code_location(e) or isinstance(e, BrokenRuleError):
            collective = isinstance(e, BrokenRuleError) and e.collective
            return HookError(
                f"round {round}{described(e)}{traceback_hint()}", collective=collective
            )
        return None

    with convert_errors(convert):
        yield
