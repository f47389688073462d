"""Tests pass under nohup and in a background shell, which have signals ignored."""

import signal
import subprocess
import sys

from tests.signals import SENT, not_ignored

SHOW = "import signal, sys; print([int(signal.getsignal(signal.Signals[n])) for n in sys.argv[1:]])"
# Python itself takes SIGINT.
NAMES = [name for name in SENT if name != "SIGINT"]


def test_a_process_that_is_sent_signals_ignores_none():
    numbers = [signal.Signals[name] for name in NAMES]
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        with not_ignored():
            shown = subprocess.check_output([sys.executable, "-c", SHOW, *NAMES], text=True)
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * len(numbers)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert shown.split("\n")[0] == str([int(signal.SIG_DFL)] * len(numbers))
