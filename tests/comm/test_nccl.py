"""NCCL without GPUs: its settings, and its errors."""

import os
from pathlib import Path

import pytest

from hpcfl.comm import torch_distributed
from hpcfl.comm.launcher import Launch
from hpcfl.comm.torch_distributed import Nccl
from hpcfl.errors import RankError

dist = torch_distributed.dist

NO_ROUTE = """\
NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:94, unhandled system error
ncclSystemError: System call (e.g. socket, malloc) or external library call failed.
Last error:
socketPollConnect: connect to 10.0.0.7<41337> returned No route to host, exceeded error count
Exception raised from getNCCLComm at NCCLUtils.cpp:94 (most recent call first):
"""


@pytest.fixture
def nccl(monkeypatch):
    """Makes a group of one rank; torch is not asked for one."""
    monkeypatch.setenv("NCCL_ALGO", "")  # is restored after the test, which sets it
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)

    def make(init, **sums):
        monkeypatch.setattr(dist, "init_process_group", init)
        return Nccl(Launch(0, 1, 0, "none"), 60.0, Path(), **sums)

    return make


@pytest.mark.parametrize(
    ("own", "exact", "expected"),
    [
        (None, False, "^NVLS,NVLSTree"),
        (None, True, None),
        ("Ring", False, "Ring"),
        ("Ring", True, "Ring"),
    ],
)
def test_floats_are_not_added_in_the_switch(nccl, monkeypatch, own, exact, expected):
    """Their order is another in every call; the user's own choice is kept."""
    if own is None:
        monkeypatch.delenv("NCCL_ALGO", raising=False)
    else:
        monkeypatch.setenv("NCCL_ALGO", own)
    seen = []
    nccl(lambda *_, **__: seen.append(os.environ.get("NCCL_ALGO")), exact=exact)
    assert seen == [expected]


def fails(*_, **__):
    raise RuntimeError(NO_ROUTE)


def test_an_error_has_the_line_in_which_nccl_names_the_cause(nccl, monkeypatch):
    expected = (
        r"nccl: NCCL error in: \S+:94, unhandled system error: socketPollConnect: connect to "
        r"10\.0\.0\.7<41337> returned No route to host, exceeded error count; another rank has"
    )
    group = nccl(lambda *_, **__: None)
    with pytest.raises(RankError, match=expected):
        group._run(fails)
    with pytest.raises(RankError, match=r"do not meet \(NCCL error in: \S+ .*: socketPollConnect"):
        nccl(fails)
    assert torch_distributed._cause(RuntimeError("")) == ""
    assert torch_distributed._cause(RuntimeError("one\ntwo")) == "one"
