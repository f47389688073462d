"""Signals that tests send, whatever the parent of pytest ignores."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SENT = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")


@contextmanager
def not_ignored() -> Iterator[None]:
    """A process that is started in the block gets the default of each signal that a test sends.

    ``nohup`` has SIGHUP ignored, and a shell SIGINT and SIGQUIT in the background.  A new program
    ignores what its parent ignores; of a signal that its parent handles it gets the default.
    """
    numbers = [signal.Signals[name] for name in SENT]
    ignored = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
