"""A run in this process leaves its signal handlers behind: put back those of pytest."""

import signal

import pytest
import torch

from hpcfl.io.signals import SAVE, STOP


@pytest.fixture(autouse=True)
def own_process():
    torch.set_num_threads(1)
    before = {number: signal.getsignal(number) for number in (*STOP, SAVE)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """One for all, so that ``trace`` knows a job again that it has played."""
    return tmp_path_factory.mktemp("problems")
