"""Ask several directories at the same time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 32
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def map_in_threads(function: Callable[[_Item], _Answer], items: Iterable[_Item]) -> list[_Answer]:
    """Call a function that waits for a disk for each item, up to AT_ONCE calls at the same time.

    Returns:
        The results in the order of the items.

    Raises:
        Exception: that of the first item, in their order, whose call raised one.
    """
    with ThreadPoolExecutor(AT_ONCE, "read") as threads:
        return list(threads.map(function, items))
