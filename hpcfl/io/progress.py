"""Show how far a long task is: a bar on a terminal, plain lines anywhere else."""

import errno
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from rich.console import Console
from rich.progress import track as rich_track

from hpcfl.errors import one_line

T = TypeVar("T")
TRACK_S = 10.0  # between two lines of ``track``


class _UntilUnread:
    """A stream whose reader may leave: what is printed after that goes to /dev/null."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._discarding():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._discarding():
            self._stream.flush()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            if e.errno not in (errno.EPIPE, errno.EIO):  # a closed pipe, or a closed terminal
                raise
            with Path(os.devnull).open("wb") as null:
                os.dup2(null.fileno(), self._stream.fileno())


def until_unread(stream: IO[str]) -> IO[str]:
    """The stream, to which a long run may print even after its reader has left.

    A pipe (``| head``) or a terminal may be closed while a run goes on.  The run does not end: from
    then on the file descriptor of the stream is that of /dev/null.
    """
    return cast("IO[str]", _UntilUnread(stream))


def has_bars(console: Console) -> bool:
    """Whether to draw bars: on a terminal, or where TTY_INTERACTIVE says that there is one.

    FORCE_COLOR makes rich take a file for a terminal, too, which bars would fill.
    """
    is_terminal = getattr(console.file, "isatty", None)  # a stream of a notebook may lack it
    terminal = (is_terminal is not None and is_terminal()) or "TTY_INTERACTIVE" in os.environ
    return terminal and console.is_interactive


def track(
    items: Iterable[T], what: str, total: int | None = None, *, thread: bool = True
) -> Iterator[T]:
    """Iterate over items and show the progress: a bar on a terminal, else a line every 10 s.

    Args:
        items: any.
        what: names what is counted: "verified states".
        total: how many items there are, if known.
        thread: whether a thread draws the bar; else it is drawn between two items.
    """
    console, what = Console(stderr=True), one_line(what)
    if has_bars(console):
        yield from rich_track(
            items, what, total, console=console, transient=True, auto_refresh=thread
        )
        return
    of = "" if total is None else f" of {total}"
    due = time.monotonic() + TRACK_S
    for done, item in enumerate(items):
        if time.monotonic() >= due:
            due += TRACK_S
            sys.stderr.write(f"{what}: {done}{of}\n")
        yield item
