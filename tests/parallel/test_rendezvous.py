"""Ranks of Gloo that do not meet: one line each, in time, and nothing of torch's own."""

import subprocess
import sys
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # noqa: TID251

from tests.forked import free_ports
from tests.parallel.background import write
from tests.parallel.harness import environment

HANG_S = 300.0  # only against a hang


class Ranks:
    """Processes as torchrun starts them; a context manager."""

    def __init__(self, folder, size, timeout_s, host="127.0.0.1"):
        self._job = write(folder, comm={"backend": "gloo", "timeout_s": timeout_s})
        self._size, self._host, self._port = size, host, free_ports(1)
        self.processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.communicate()

    def start(self, rank):
        here = self._size if self._host == "127.0.0.1" else 1
        env = environment(
            RANK=str(rank), LOCAL_RANK="0" if here == 1 else str(rank),
            WORLD_SIZE=str(self._size), LOCAL_WORLD_SIZE=str(here),
            MASTER_ADDR=self._host, MASTER_PORT=str(self._port),
        )  # fmt: skip
        words = ["run", str(self._job), "--out", str(self._job.with_name("run"))]
        self.processes[rank] = subprocess.Popen(
            [sys.executable, "-m", "hpcfl", *words],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self.processes[rank]

    def end(self, rank):
        """The exit code and the lines on standard error."""
        process = self.processes[rank]
        _, err = process.communicate(timeout=HANG_S)
        return process.returncode, err.splitlines()

    def wait_until_here(self, rank):
        """Wait until a rank has told the store that it has come."""
        limit = timedelta(seconds=HANG_S)
        store = TCPStore(self._host, self._port, is_master=False, timeout=limit)
        store.wait([f"hpcfl/0/0/here/{rank}"], limit)


@pytest.mark.usefixtures("forked_python")
def test_a_name_that_does_not_resolve(tmp_path):
    """Long before the ten minutes of comm.timeout_s."""
    with Ranks(tmp_path, 2, 600.0, host="no-such-host.invalid") as ranks:
        for rank in range(2):
            ranks.start(rank)
        for rank in range(2):
            code, (line,) = ranks.end(rank)
            assert code == 1
            assert line.startswith(
                f"RankError: rank {rank} of 2: the name of host no-such-host.invalid cannot be "
                "resolved ("
            )
            assert line.endswith(
                "set MASTER_ADDR to an address of rank 0's host that all hosts reach"
            )


@pytest.mark.parametrize(
    ("comes", "line"),
    [
        (0, "RankError: rank 0 of 2: rank 1 did not come within 2 s; it has ended or hangs"),
        (1, "RankError: rank 1 of 2 cannot reach, within 2 s, the store at 127.0.0.1:"),
    ],
)
@pytest.mark.usefixtures("forked_python")
def test_a_rank_that_never_comes(tmp_path, comes, line):
    with Ranks(tmp_path, 2, 2.0) as ranks:
        ranks.start(comes)
        code, (said,) = ranks.end(comes)
    assert code == 1
    assert said.startswith(line)


def test_rank_0_dies_while_ranks_meet(tmp_path):
    """Two of three have come."""
    with Ranks(tmp_path, 3, 600.0) as ranks:
        for rank in range(2):
            ranks.start(rank)
        ranks.wait_until_here(1)  # one that has only connected would connect again and again
        ranks.processes[0].kill()
        code, (line,) = ranks.end(1)
    assert code == 1
    assert line.startswith("RankError: rank 1 of 3: rank 0 is gone before all ranks have met")
