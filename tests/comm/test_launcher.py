import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfl.comm import connect as connecting
from hpcfl.comm import load_mpi
from hpcfl.comm.connect import connect
from hpcfl.comm.launcher import Launch, detect
from hpcfl.comm.rendezvous import address, first_host
from hpcfl.errors import JobError, RankError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}
STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1234"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Launch(0, 1, 0, "none")),
        (TORCHRUN, Launch(3, 4, 1, "torchrun")),
        (OPENMPI, Launch(2, 4, 0, "openmpi")),
        (MPICH, Launch(2, 4, 0, "mpich")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launch(1, 2, None, "mpich")),
        (STEP, Launch(5, 8, 1, "slurm")),
        # srun --mpi=pmi2 sets both kinds
        ({**STEP, "PMI_RANK": "5", "PMI_SIZE": "8"}, Launch(5, 8, 1, "slurm")),
        # mpirun in an allocation: Slurm's numbers are those of mpirun's daemon
        ({**STEP, **MPICH}, Launch(2, 4, 0, "mpich")),
        ({**STEP, **OPENMPI}, Launch(2, 4, 0, "openmpi")),
        ({**STEP, **TORCHRUN}, Launch(3, 4, 1, "torchrun")),
        # a batch script, or an interactive shell, is one process
        (BATCH, Launch(0, 1, 0, "none")),
        ({**STEP, "SLURM_STEP_ID": "4294967290"}, Launch(0, 1, 0, "none")),
    ],
)
def test_the_innermost_launcher_is_found(environ, expected):
    assert detect(environ) == expected


def test_an_incomplete_torchrun_environment_is_an_error_not_one_process():
    with pytest.raises(RankError, match="but not LOCAL_RANK, MASTER_ADDR, MASTER_PORT"):
        detect({"RANK": "0", "WORLD_SIZE": "2"})


@pytest.mark.parametrize("value", ["", "two", "-1"])
def test_a_rank_that_is_no_number_is_an_error(value):
    with pytest.raises(RankError, match="PMI_RANK is"):
        detect({**MPICH, "PMI_RANK": value})


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu07", "gpu07"),
        ("gpu07,gpu09", "gpu07"),
        ("gpu[07-09,12]", "gpu07"),
        ("gpu[12,07-09]-ib,login1", "gpu12-ib"),
        ("rack[2-3]node[04-05]", "rack2node04"),
        ("a,gpu[1-2]", "a"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes, host):
    assert first_host(nodes) == host


def test_slurm_ranks_meet_at_a_port_of_their_step():
    launched = detect(STEP)
    host, port = address(launched, STEP)
    assert host == "gpu07"
    assert 15000 <= port < 30000
    assert port != address(launched, {**STEP, "SLURM_JOB_ID": "1235"})[1]
    assert port != address(launched, {**STEP, "SLURM_STEP_ID": "1"})[1]
    master = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "77"}
    assert address(launched, {**STEP, **master}) == ("10.0.0.1", 77)


def test_a_slurm_step_without_nodes_is_an_error():
    nowhere = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NODELIST"}
    with pytest.raises(RankError, match="MASTER_ADDR is ''"):
        address(detect(nowhere), nowhere)


OTHERWISE = {"mpi": "use gloo", "gloo": "start the ranks by torchrun or srun"}


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_a_named_backend_without_its_library_is_an_error(backend, monkeypatch):
    for module in (connecting, load_mpi):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr("os.environ", MPICH)
    with pytest.raises(JobError, match=f"mpi4py is not installed; .*, or {OTHERWISE[backend]}"):
        connect(backend, "cpu", 1.0, Path())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_an_mpi_that_cannot_be_loaded_is_an_error(backend):
    """As on a cluster before the site's module is loaded."""
    program = (
        "from pathlib import Path; from hpcfl.comm.connect import connect\n"
        "from hpcfl.errors import JobError\n"
        f"try: connect('{backend}', 'cpu', 1.0, Path())\n"
        "except JobError as e: print(e)"
    )
    env = {**os.environ, **MPICH, "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert "mpi4py finds no MPI (" in line
    assert line.endswith(
        f"; load the site's MPI module, pip install mpich, or {OTHERWISE[backend]}"
    )


def test_nccl_is_refused_on_a_cpu_and_mpi_on_a_gpu():
    with pytest.raises(JobError, match="nccl sums GPU tensors, the device is cpu"):
        connect("nccl", "cpu", 1.0, Path())
    with pytest.raises(JobError, match="mpi sums CPU tensors, the device is cuda"):
        connect("mpi", "cuda", 1.0, Path())


def test_nccl_is_refused_where_torch_has_none(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    with pytest.raises(JobError, match="this torch was built without NCCL; use gloo"):
        connect("nccl", "cuda", 1.0, Path())


def test_a_port_that_is_taken_is_an_error(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        first = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        monkeypatch.setattr("os.environ", {**TORCHRUN, **first})
        with pytest.raises(RankError, match=f"cannot open the store at 127.0.0.1:{port}"):
            connect("gloo", "cpu", 5.0, Path())


@pytest.mark.parametrize(
    ("environ", "device_type", "has_mpi4py", "backend"),
    [
        (MPICH, "cpu", True, "mpi"),
        (MPICH, "cpu", False, "gloo"),
        (MPICH, "cuda", True, "nccl"),
        (STEP, "cpu", True, "mpi"),
        (TORCHRUN, "cpu", True, "gloo"),
        (TORCHRUN, "cuda", False, "nccl"),
    ],
)
def test_auto_chooses_by_device_and_launcher(
    environ, device_type, has_mpi4py, backend, monkeypatch
):
    monkeypatch.setattr(connecting, "find_spec", lambda name: object() if has_mpi4py else None)
    assert connecting.choose(detect(environ), device_type)[0] == backend


def test_one_process_imports_neither_mpi_nor_torch_distributed_of_ours():
    program = (
        "import sys; from pathlib import Path; from hpcfl.comm.connect import connect;"
        "comm = connect('auto', 'cpu', 1.0, Path());"
        "assert type(comm).__name__ == 'Solo', comm;"
        "assert 'mpi4py' not in sys.modules;"
        "assert 'hpcfl.comm.torch_distributed' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_solo_aborts_with_the_code_and_keeps_what_was_printed():
    program = "from hpcfl.comm.solo import Solo; print('said'); Solo().abort(3)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "said\n")
