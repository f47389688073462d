"""The ranks of a start: what is refused, what is only told."""

import pytest

from hpcfl.errors import JobError
from hpcfl.start.checks.ranks import check_ranks
from tests.seats import CODE, VERSIONS, gpu, seat


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
    assert check_ranks(seats, "mpi") == []


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
        check_ranks(seats, "gloo")
    assert e.value.collective
    assert "\n" not in str(e.value)


def test_single_threads_that_share_cores_are_told():
    """Nobody could lower their number, and the bits are the same."""
    seats = [seat(0, "b"), *(seat(rank, cores=[0, 1]) for rank in (1, 2, 3))]
    assert check_ranks(seats, "mpi") == ["3 ranks share 2 cores of host a"]


def test_two_ranks_on_one_gpu_are_refused_with_nccl_alone():
    # Slurm may show every rank its own GPU as number 0
    apart = [gpu(0, 0, name="u0"), gpu(1, 0, name="u1")]
    assert check_ranks(apart, "nccl") == []
    shared = [gpu(0, 0), gpu(1, 1), gpu(2, 0)]
    assert check_ranks(shared, "gloo") == []
    with pytest.raises(JobError, match=r"rank 0 \(host a\) and rank 2 \(host a\) are both on GPU"):
        check_ranks(shared, "nccl")


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
        check_ranks([seat(0), seat(1), seat(2, "b", **odd)], "mpi")


def test_another_processor_is_told_once():
    seats = [seat(0), seat(1, processor="Y"), seat(2, processor="Z")]
    (line,) = check_ranks(seats, "mpi")
    assert line.startswith("rank 1 (host a) computes on Y, rank 0 (host a) on X: the bits may")
