"""Two ranks of NCCL, played by ``nccl_stand_in.py``: their bits, and the loss of one of them."""

import re
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from hpcfl.io import heartbeat
from tests.comm.test_nccl import NO_ROUTE
from tests.forked import python
from tests.long_form import long_form
from tests.parallel.background import DIGITS, write
from tests.parallel.harness import ROOT, play_all
from tests.parallel.lost_rank import TIMEOUT_S, LostRank
from tests.parallel.outcome import outcome

STAND_IN = Path(__file__).with_name("nccl_stand_in.py")
HPCFL = ROOT / "hpcfl/__main__.py"
JOB = {
    **DIGITS,
    "algorithm": {"name": "scaffold"},
    "cohort": {"kind": "uniform", "size": 4},
    "balance": "steal",  # in rounds 1 and 2
    "evaluate": {"every": 2},
    "checkpoint": {"every": 2},
    "device": "cuda",
    "executor": "sequential",
    "rounds": 6,
}
JOBS = {name: {**JOB, "algorithm": {"name": name}} for name in ("fedavg", "scaffold")}


def test_the_bits_of_a_cpu(tmp_path):
    """Also of a run that was stopped, and resumed on another number of ranks."""
    on_cpu = {name: {**job, "device": "cpu"} for name, job in JOBS.items()}
    for folder in ("cpu", "gpus"):
        (tmp_path / folder).mkdir()
    play_all(tmp_path / "cpu", on_cpu, 1)
    play_all(tmp_path / "gpus", JOBS, 2, stop=3, mpi=False, under=[STAND_IN])
    play_all(tmp_path / "gpus", JOBS, 3, mpi=False, under=[STAND_IN])
    for name in JOBS:
        assert outcome(tmp_path / "gpus" / name) == outcome(tmp_path / "cpu" / name)


def test_nccl_does_not_work(tmp_path):
    """The start ends, before data are loaded."""
    job = write(tmp_path, **JOB)
    error = {"HPCFL_TEST_NCCL_ERROR": NO_ROUTE}
    done = python(2, STAND_IN, HPCFL, "run", job, "--out", tmp_path / "run", env=error)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert lines  # of one rank, or of both: the end of the first may end the other
    for line in lines:
        assert re.match(
            r"\[rank (.) of 2\] RankError: rank \1 of 2: nccl: the communicator of the GPUs cannot "
            r"be made \(NCCL error in: ",
            line,
        )
        assert line.endswith("NCCL_DEBUG=INFO shows why, comm.backend=gloo works without it")
    assert not (tmp_path / "run").exists()


BEATS = 4  # of the twelve in a time-out; before it both ranks have about as many
ROUNDS = (
    *("training", "maximum", "sum", "sending"),
    *("evaluating", "saving", "committing", "ending"),
)
SAMPLE = [
    (1, "STOP", "grouping"),
    (0, "STOP", "maximum"),
    (1, "KILL", "sum"),
    (0, "STOP", "sending"),
]
ALL = [  # before the first round a rank that is killed is missed in the store, as with Gloo
    *product((0, 1), ("STOP", "KILL"), ["meeting"]),
    *product((0, 1), ["STOP"], ("grouping", "verifying")),
    *product((0, 1), ("STOP", "KILL"), ROUNDS),
]
AT_ONCE = 4


def beats(case, rank):
    """How often a rank has said that it is alive."""
    (path,) = case.run.glob(f"ranks/*/{rank:04}.json")
    return heartbeat.read(path).beat


@pytest.mark.parametrize(
    "cases",
    [
        SAMPLE,
        *(pytest.param(ALL[k : k + AT_ONCE], marks=long_form) for k in range(0, len(ALL), AT_ONCE)),
    ],
    ids=lambda cases: " ".join(f"{fault}-{rank}-{phase}" for rank, fault, phase in cases),
)
def test_a_lost_rank_is_named(cases, tmp_path):
    """The watchdog sees it, and heartbeats go on: the other rank waits without Python's lock."""
    with ExitStack() as stack:
        going = {}
        for k, (victim, fault, phase) in enumerate(cases):
            case = LostRank(
                tmp_path / str(k),
                "own",
                victim,
                phase,
                fault,
                under=[str(STAND_IN), str(HPCFL)],
                backend="nccl",
                **JOB,
            )
            going[stack.enter_context(case)] = phase
        for case in going:
            case.wait_until_lost()
        for case, phase in going.items():
            case.wait_until_ended()
            assert case.processes[case.other].wait() == 1, case.said
            if phase == "grouping":
                assert "the communicator of the GPUs cannot be made" in case.error
            elif phase == "meeting":
                assert re.search("did not come|the store|is gone before", case.error)
            else:
                assert f"waited {TIMEOUT_S:g} s for the other ranks" in case.error
                assert f": rank {case.victim} (host " in case.error
                assert beats(case, case.other) >= beats(case, case.victim) + BEATS
