"""NCCL without GPUs: its settings, and its errors."""

import os
from pathlib import Path

import pytest
import torch

from hpcfl.comm import torch_distributed
from hpcfl.comm.launcher import Launch
from hpcfl.comm.torch_distributed import Nccl
from hpcfl.errors import RankError
from tests.gpu.fake_cuda import fake_cuda

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
    """Makes a group of one rank, on the second of two GPUs; torch is not asked for one."""
    monkeypatch.setenv("NCCL_ALGO", "")  # is restored after the test, which sets it
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)

    def make(init, **sums):
        monkeypatch.setattr(dist, "init_process_group", init)
        return Nccl(Launch(0, 1, 0, "none"), 60.0, Path(), **sums)

    with fake_cuda(2):
        torch.cuda.set_device(torch.device("cuda", 1))
        yield make


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
    group = nccl(lambda *_, **__: seen.append(os.environ.get("NCCL_ALGO")), exact=exact)
    group._run(lambda: None)
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
    expected = r"cannot be made \(NCCL error in: .*: socketPollConnect: .*\); .* NCCL_DEBUG=INFO"
    with pytest.raises(RankError, match=expected):
        nccl(fails)._run(lambda: None)
    assert torch_distributed._cause(TimeoutError()) == "TimeoutError"
    assert torch_distributed._cause(RuntimeError("one\ntwo")) == "one"


def test_the_communicator_is_made_once_on_the_ranks_own_gpu(nccl):
    """Before the first collective, when the ranks have agreed on their GPUs by the store."""
    seen = []
    group = nccl(lambda *_, device_id, **__: seen.append(device_id))
    assert group.allgather("text") == ["text"]
    assert seen == []
    for _ in range(2):
        group._run(lambda: None)
    assert seen == [torch.device("cuda", 1)]
