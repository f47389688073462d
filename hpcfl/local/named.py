"""Errors that say where they came from."""

from hpcfl.errors import ClientError, HpcflError
from hpcfl.local.step import Visit


class named:
    """Lets an error say which client, round and stage it came from."""

    def __init__(self, visit: Visit, stage: str) -> None:
        self._visit, self._stage = visit, stage

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HpcflError):
            visit = self._visit
            raise ClientError(visit.client, visit.round + 1, None, self._stage) from error
