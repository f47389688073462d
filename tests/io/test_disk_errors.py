"""A failing disk keeps its exit code, 74, whatever was at work when it failed."""

import errno
import os
from types import SimpleNamespace

import pytest

from hpcfl.clients.error_context import client_errors, round_errors
from hpcfl.errors import DiskError, as_disk_error, as_job_error

VISIT = SimpleNamespace(client=7, round=3)
AROUND = {
    "a class before round 1": lambda: as_job_error("data.kind: x", "cannot", " in load (x.py:1)"),
    "a client": lambda: client_errors(VISIT, "begin"),
    "a round": lambda: round_errors(4),
}


def failure(name, *file):
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), *file)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "ESTALE"])
def test_a_disk_that_fails_under_a_class(around, name):
    with pytest.raises(DiskError, match=r"^data\.npz: "), AROUND[around]():
        raise failure(name, "data.npz")


@pytest.mark.parametrize("name", ["ETIMEDOUT", "ENOTCONN", "ESHUTDOWN"])
def test_what_a_socket_raises_is_no_disk(name):
    assert as_disk_error(failure(name)) is None
    assert isinstance(as_disk_error(failure(name, "data.npz")), DiskError)
