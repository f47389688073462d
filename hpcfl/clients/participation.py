"""Who takes part in a round, and how: known on every rank before anything is trained."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpcfl.types import IntArray

OF_JOB: Mapping[int, int] = MappingProxyType({})  # every client takes the steps of the job


class Wait(NamedTuple):
    """How the server of a round waited for the clients that it asked."""

    asked: int
    """Clients that were asked."""
    seconds: float
    """Simulated, in whole microseconds: how long the round lasted."""


class Participation(NamedTuple):
    """The clients of one round; the same on every rank."""

    members: IntArray
    """[S], ascending: the clients that are trained and count."""
    steps: Mapping[int, int] = OF_JOB
    """The members that take fewer local steps than the job's, and how many they take."""
    wait: Wait | None = None
    """None where the job has no devices: no time is simulated."""
