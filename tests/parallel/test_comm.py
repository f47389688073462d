"""Real ranks: the same bits on any number of them, and every way to start them."""

import json
import math
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from tests.forked import free_ports
from tests.long_form import long_form
from tests.parallel.background import write
from tests.parallel.collectives import CLIENTS, PARAMETERS, WEIGHTS, upload
from tests.parallel.harness import environment, find_mpirun, mpirun

PROGRAM = Path(__file__).with_name("collectives.py")


def read(folder, size):
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def check(said, size, kind):
    """Everything that is the same whatever the backend is."""
    assert [(s["rank"], s["size"]) for s in said] == [(rank, size) for rank in range(size)]
    # Open MPI, where ranks exceed cores, has another order on a host.
    assert sorted(s["local_rank"] for s in said) == list(range(size))
    for s in said:
        assert s["kind"] == kind
        bytes_ = CLIENTS * 4 * (2 * PARAMETERS + 1)
        assert s["agreed"] == [[bytes_, size - 1.0]] * 3
        assert s["diverged"].startswith(
            f"client 12 on rank {size - 1}, round 9: its upload 'drift' is not finite"
        )
        assert s["sum"] == [size * (size + 1) // 2, size * (2**61 // size)]
        assert s["exchanged"]
        assert s["max"] == [size - 1.0, 0.0]
        assert s["shared"] == ["from 0: \u00e9\n", ""]
        assert s["sums"] == [math.fsum(0.1 * i for i in range(100)), size, 0.0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process without MPI finds: the reference."""
    folder = tmp_path_factory.mktemp("alone")
    command = [sys.executable, PROGRAM, "auto", folder]
    subprocess.run(command, env=environment(), check=True, timeout=300)
    return read(folder, 1)[0]


def test_one_process_is_right_and_independent_of_the_order(alone):
    check([alone], 1, "Solo")
    assert len(set(alone["digests"])) == 1
    total = sum(WEIGHTS)
    for i, found in enumerate(alone["delta"]):
        terms = [Fraction(WEIGHTS[c]) * Fraction(upload(c).delta[i].item()) for c in range(CLIENTS)]
        true = sum(terms) / Fraction(total)
        peak = max(WEIGHTS[c] * upload(c).delta.abs().max().item() for c in range(CLIENTS))
        bound = CLIENTS / total * peak * 2.0**-51
        assert abs(Fraction(found) - true) <= bound + 2.0**-24 * abs(found)


@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=long_form)])
@pytest.mark.parametrize(("backend", "kind"), [("mpi", "Mpi"), ("gloo", "Gloo")])
def test_the_same_bits_on_any_number_of_ranks(backend, kind, size, alone, tmp_path):
    done = mpirun(size, PROGRAM, backend, tmp_path)
    assert done.returncode == 0, done.stderr
    said = read(tmp_path, size)
    check(said, size, kind)
    assert {digest for s in said for digest in s["digests"]} == set(alone["digests"])


@pytest.mark.usefixtures("forked_python")
def test_ranks_of_different_backends_do_not_wait_for_each_other(tmp_path):
    ranks = [[sys.executable, PROGRAM, backend, tmp_path] for backend in ("mpi", "gloo")]
    command = [find_mpirun(), "-n", "1", *ranks[0], ":", "-n", "1", *ranks[1]]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode != 0
    assert re.search(r"RankError: comm.backend: rank \d takes \w+, others do not", done.stderr)


def torchrun_style(rank, size, port):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def slurm_style(rank, size, port):
    return {
        "SLURM_JOB_ID": port,
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NODELIST": "localhost",
    }


@pytest.mark.parametrize("launcher", [torchrun_style, slurm_style])
@pytest.mark.usefixtures("forked_python")
def test_gloo_without_mpi(launcher, alone, tmp_path):
    port = str(free_ports(1))
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, "gloo", tmp_path],
            env=environment(**launcher(rank, 2, port)),
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    said = read(tmp_path, 2)
    check(said, 2, "Gloo")
    assert {digest for s in said for digest in s["digests"]} == set(alone["digests"])


def run(program, **changes):
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


CONNECT = (
    "from pathlib import Path; from hpcfl.comm.connect import connect; "
    "connect('{}', 'cpu', {}, Path()).close()"
)


@pytest.mark.parametrize("backend", ["auto", "mpi", "gloo"])
def test_a_launcher_of_another_mpi_is_refused(backend):
    done = run(CONNECT.format(backend, 5), PMI_RANK="0", PMI_SIZE="2")
    assert done.returncode != 0
    last = done.stderr.strip().split("\n")[-1]
    assert "mpich started rank 0 of 2, but MPI" in last
    assert "sees rank 0 of 1; use the mpirun that belongs to mpi4py's MPI" in last


def test_mpi_that_somebody_else_ended_is_an_error_not_a_crash():
    ended = "from mpi4py import MPI; MPI.Finalize(); "
    done = run(ended + CONNECT.format("mpi", 5))
    assert done.returncode == 1
    assert "RankError: MPI has ended in this process and cannot start again" in done.stderr


def test_a_rank_zero_that_never_comes_is_an_error_after_the_timeout():
    done = run(CONNECT.format("gloo", 2), **torchrun_style(1, 2, str(free_ports(1))))
    assert done.returncode != 0
    assert "RankError: rank 1 of 2 cannot reach, within 2 s, the store at" in done.stderr


HANGS = "another rank has ended, hangs, or needs longer than comm.timeout_s: raise that"
ROOM = "exchange([], [P2PMessage(0, torch.empty(3))])"


@pytest.mark.parametrize(
    ("meeting", "says"),
    [
        ("barrier()", HANGS),
        pytest.param(ROOM, HANGS, marks=long_form),
        pytest.param(
            "allgather('me')",
            "another rank has ended or hangs (comm.timeout_s)",
            marks=long_form,
        ),
    ],
)
def test_a_peer_that_hangs_is_an_error_after_the_timeout(meeting, says, tmp_path):
    program = tmp_path / "hang.py"
    program.write_text(
        "import time, torch\n"
        "from hpcfl.comm.base import P2PMessage\n"
        "from pathlib import Path\n"
        "from hpcfl.comm.connect import connect\n"
        "comm = connect('gloo', 'cpu', 15.0, Path())\n"  # in which the ranks must meet, too
        "if comm.rank == 0:\n"
        "    time.sleep(600)\n"
        "try:\n"
        f"    comm.{meeting}\n"
        "except Exception as error:\n"
        # mpirun may lose what a rank prints just before an abort.
        f"    open({str(tmp_path / 'said')!r}, 'w').write(f'{{type(error).__name__}} {{error}}')\n"
        "    comm.abort(5)\n"
    )
    done = mpirun(2, program)
    assert done.returncode != 0
    said = (tmp_path / "said").read_text()
    assert said.startswith("RankError rank 1 of 2: gloo: ")
    assert says in said


WATCHED = """
import sys, time
from pathlib import Path
from hpcfl.comm import torch_distributed
from hpcfl.comm.connect import connect
from hpcfl.comm.watched import WatchedComm
torch_distributed.TIMEOUT_FACTOR = 0.4
comm = WatchedComm(connect("gloo", "cpu", 15.0, Path(sys.argv[1])), 15.0)
comm.start_heartbeats(Path(sys.argv[1]), "session")
"""
SLOW = """
if comm.rank == 0:
    time.sleep(8.0)
assert comm.bcast("text") == "text"
comm.close()
"""
ENDS = """
if comm.rank == 1:
    comm.abort(3)
comm.barrier()
"""


def test_before_the_first_round_a_slow_rank_is_waited_for(tmp_path):
    """Longer than Gloo's own time-out, which is 6 s here."""
    program = tmp_path / "slow.py"
    program.write_text(WATCHED + SLOW)
    done = mpirun(2, program, tmp_path / "ranks")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ends", [0, 1])
@pytest.mark.usefixtures("forked_python")
def test_before_the_first_round_a_rank_that_ends_is_noticed(ends, tmp_path):
    """By the other ranks themselves: there is no launcher.  With rank 0 the store ends."""
    port, program = str(free_ports(1)), WATCHED + ENDS.replace("== 1", f"== {ends}")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / "ranks"],
            env=environment(**torchrun_style(rank, 3, port)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [3 if rank == ends else 1 for rank in range(3)]
    report = (tmp_path / "ranks/session/report").read_text()
    assert f"gloo: rank {ends} has ended; its own message, if it printed one, is above" in report
    assert sum("RankError" in words for words in said) == 1


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
@pytest.mark.parametrize(
    "end", [pytest.param("comm.abort(3)", marks=long_form), "raise RuntimeError"]
)
def test_one_rank_that_fails_ends_all(backend, end, tmp_path):
    program = tmp_path / "fail.py"
    program.write_text(
        "from pathlib import Path\n"
        "from hpcfl.comm.connect import connect\n"
        f"comm = connect('{backend}', 'cpu', 600.0, Path())\n"
        "print('met', flush=True)\n"
        "comm.barrier()\n"
        "if comm.rank == 1:\n"
        f"    {end}\n"
        "comm.barrier()\n"
        "print('went on')\n"
    )
    done = mpirun(3, program)
    assert done.returncode != 0
    assert done.stdout.count("met") == 3
    assert "went on" not in done.stdout


def test_a_launcher_of_another_mpi_is_refused_before_anything_is_written(tmp_path):
    """Two worlds of one rank each would train the same job twice, into one directory."""
    command = [sys.executable, "-m", "hpcfl", "run", write(tmp_path), "--out", tmp_path / "run"]
    done = subprocess.run(
        command,
        env=environment(PMI_RANK="0", PMI_SIZE="2"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "Error" in line]
    assert line.startswith("RankError: launcher and MPI do not match: mpich started rank 0 of 2")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


LISTENS = """
import os, sys
from pathlib import Path
from hpcfl.comm.connect import connect
comm = connect("gloo", "cpu", 60.0, Path())
comm.barrier()
held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")}
for table in ("tcp", "tcp6"):
    for line in Path("/proc/net", table).read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in held:
            print(words[1].partition(":")[0], flush=True)
comm.barrier()
comm.close()
"""


def test_on_one_host_ranks_listen_to_nobody_else():
    """Of torch.distributed: the store's socket on rank 0, and Gloo's own on every rank."""
    port = str(free_ports(1))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LISTENS],
            env=environment(**torchrun_style(rank, 2, port)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert len(said[0]) >= 2
    assert said[1]
    assert set(said[0] + said[1]) == {"0100007F"}
