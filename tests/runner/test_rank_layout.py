"""Where ranks sit: what is refused, what is only told, what a person reads."""

from pathlib import Path

import pytest

from hpcfl.comm.solo import Solo
from hpcfl.comm.watched import WatchedComm
from hpcfl.errors import JobError
from hpcfl.job.schema import load
from hpcfl.setup import rank_layout
from hpcfl.setup.rank_layout import RankInfo, check, describe, discover_ranks

JOB = Path(__file__).parents[2] / "jobs/quickstart.yaml"
VERSIONS = {"hpcfl": "1", "torch": "2"}
CODE = {"mine": "0123", "helpers": "4567"}


def seat(rank, host="a", **changes):
    facts = {"local_rank": rank, "device": "cpu", "threads": 1, "cores": [0, 1, 2, 3]}
    facts |= {"numa": [0], "processor": "X", "versions": VERSIONS, "code": CODE, "job": "j"}
    facts |= changes
    return RankInfo(rank=rank, host=host, **facts)


def gpu(rank, number, host="a", name=None):
    return seat(rank, host, device=f"cuda:{number}", gpu=name or f"{host}{number}")


@pytest.mark.parametrize(
    "seats",
    [
        [seat(0, threads=4)],
        [seat(0, threads=2), seat(1, threads=2)],
        # bound by the launcher, two cores each
        [seat(0, threads=2, cores=[0, 1]), seat(1, threads=2, cores=[2, 3])],
        # each host has cores of its own, also where all hosts have one name
        [seat(0, "localhost", boot="x", threads=4), seat(1, "localhost", boot="y", threads=4)],
        [seat(0, threads=4), seat(1, "b", threads=4)],
    ],
)
def test_threads_that_find_a_core_each_are_no_matter(seats):
    assert check(seats, "mpi") == []


@pytest.mark.parametrize(
    ("seats", "message"),
    [
        ([seat(0, threads=5)], r"rank 0 \(host a\) may use 4 cores, but is to run 5 threads"),
        (
            [seat(0, threads=2), seat(1, threads=2, cores=[3])],
            r"rank 1 \(host a\) may use 1 core, but is to run 2 threads; .*--cpus-per-task=2",
        ),
        (
            [seat(0), seat(1, "b", threads=2), seat(2, "b", threads=3)],
            "2 ranks with 5 threads in all share 4 cores of host b",
        ),
        (
            [seat(0, threads=2, cores=[0, 1]), seat(1, threads=2, cores=[1, 2])],
            "2 ranks with 4 threads in all share 3 cores of host a",
        ),
    ],
)
def test_more_threads_than_cores_are_refused(seats, message):
    with pytest.raises(JobError, match=f"^threads: {message}") as e:
        check(seats, "gloo")
    assert e.value.collective
    assert "\n" not in str(e.value)


def test_single_threads_that_share_cores_are_told():
    """Nobody could lower their number, and the bits are the same."""
    seats = [seat(0, "b"), *(seat(rank, cores=[0, 1]) for rank in (1, 2, 3))]
    assert check(seats, "mpi") == ["3 ranks share 2 cores of host a"]


def test_two_ranks_on_one_gpu_are_refused_with_nccl_alone():
    # Slurm may show every rank its own GPU as number 0
    apart = [gpu(0, 0, name="u0"), gpu(1, 0, name="u1")]
    assert check(apart, "nccl") == []
    shared = [gpu(0, 0), gpu(1, 1), gpu(2, 0)]
    assert check(shared, "gloo") == []
    with pytest.raises(JobError, match=r"rank 0 \(host a\) and rank 2 \(host a\) are both on GPU"):
        check(shared, "nccl")


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (
            {"job": "k"},
            r"rank 2 \(host b\) was given another job or .* than rank 0 \(host a\)",
        ),
        ({"versions": {**VERSIONS, "torch": "3"}}, r"rank 2 \(host b\) has torch 3, rank 0 .* 2;"),
        (
            {"code": {**CODE, "helpers": "89ab"}},
            r"rank 2 \(host b\) has another content of module helpers than rank 0 \(host a\);",
        ),
        ({"fault": "device: found no GPU"}, r"rank 2 \(host b\): device: found no GPU"),
    ],
)
def test_a_rank_that_differs_is_named(odd, message):
    with pytest.raises(JobError, match=message):
        check([seat(0), seat(1), seat(2, "b", **odd)], "mpi")


def test_another_processor_is_told_once():
    seats = [seat(0), seat(1, processor="Y"), seat(2, processor="Z")]
    (line,) = check(seats, "mpi")
    assert line.startswith("rank 1 (host a) computes on Y, rank 0 (host a) on X: the bits may")


def test_ranks_in_words():
    seats = [seat(rank, host) for rank, host in enumerate("aabab")]
    assert describe(seats) == "5 ranks on 2 hosts (a: 3 of them; b: 2 of them), cpu, 1 thread each"
    seats = [gpu(rank, rank % 4, f"n{rank // 4}") for rank in range(24)]
    assert describe(seats) == (
        "24 ranks on 6 hosts (n0: 0-3; n1: 4-7; n2: 8-11; n3: 12-15; ...), cuda, 1 thread each"
    )


def test_this_process_sits_here(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5, 2}, raising=False)
    nodes = {"node0": "0-1,4", "node1": "2-3,5", "node10": "6-7", "node2": ""}
    for name, cores in nodes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cores + "\n")
    monkeypatch.setattr(rank_layout, "_NUMA", tmp_path)
    ranks = discover_ranks(
        load(JOB, ["threads=2", "device=cpu"]), tmp_path, WatchedComm(Solo(), 10.0)
    )
    (own,) = ranks.infos
    assert (own.cores, own.numa, own.threads, own.device) == ([2, 5], [1], 2, "cpu")
    assert (ranks.device.type, ranks.notes) == ("cpu", [])
    assert own.record.keys() == {"host", "local_rank", "device", "threads", "numa", "cores"}
    with pytest.raises(JobError, match="may use 2 cores, but is to run 3 threads"):
        discover_ranks(load(JOB, ["threads=3", "device=cpu"]), tmp_path, WatchedComm(Solo(), 10.0))
