"""Call a function that may wait for ever: for another process, a file system, or a full pipe."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

LAST_S = 5.0  # for each thing that a process still does when it ends after an error

_Value = TypeVar("_Value")


def in_time(limit_s: float, call: Callable[[], _Value]) -> _Value:
    """The value of ``call``, which a daemon thread calls; if time is up, that thread is left.

    Raises:
        TimeoutError: it takes longer than ``limit_s``.
        Exception: that of ``call``.
    """
    done = Future[_Value]()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done.result(limit_s)
