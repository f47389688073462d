"""What a round took, by a clock that is set by hand."""

from decimal import Decimal

import numpy as np
import pytest
import torch

from hpcfl.engine import timing
from hpcfl.engine.timing import RoundTimer
from hpcfl.runs.log_keys import PHASES, measured

NS = 10**9


class Clock:
    now = 0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def made(clock, monkeypatch):
    """Rank 1 of 3, of a program that takes 5 bytes."""
    monkeypatch.setattr(timing, "resident_memory", lambda: 5)
    return RoundTimer(1, 3, torch.device("cpu"), clock)


def told(*busy, memory=(5, 0)):
    return np.array([*memory, *(s * NS for s in busy)])


def test_every_instant_belongs_to_one_part(made, clock):
    """1 s of sampling, 4 of computing of which 1.5 were reading, 2 of writing."""
    for part, seconds in (("sample", 1), ("compute", 4), ("write", 2)):
        clock.now += seconds * NS
        made.mark(part)
    made.move(1.5, "compute", "read")
    record = {"clients": 14, "examples": 700}
    assert made.write_to(record) == []
    parts = {"sample_s": 1.0, "compute_s": 2.5, "read_s": 1.5, "write_s": 2.0}
    zeros = {f"{part}_s": 0.0 for part in PHASES if f"{part}_s" not in parts}
    rates = {"clients_per_s": 2.0, "examples_per_s": 100.0}
    assert record == {"clients": 14, "examples": 700, "wall_s": 7.0, **parts, **zeros, **rates}


def test_the_parts_add_up_as_they_are_written(made, clock):
    draw = np.random.default_rng(0)
    for part in PHASES * 50:
        clock.now += int(draw.integers(1, 10**10))
        made.mark(part)
    made.move(1 / 3, "compute", "read")
    record = {}
    made.write_to(record)
    parts = [Decimal(repr(record[f"{part}_s"])) for part in PHASES]
    assert sum(parts) == Decimal(repr(record["wall_s"])) == Decimal(clock.now) / NS


def test_no_more_is_moved_than_there_is(made, clock):
    clock.now += 2 * NS
    made.mark("compute")
    made.move(3.0, "compute", "read")
    record = {}
    made.write_to(record)
    assert (record["compute_s"], record["read_s"]) == (0.0, 2.0)


def test_a_round_that_ends_begins_the_next(made, clock):
    clock.now += NS
    made.mark("compute")
    made.write_to({})
    record = {}
    clock.now += 2 * NS
    made.mark("update")
    made.write_to(record)
    assert (record["wall_s"], record["compute_s"]) == (2.0, 0.0)


def test_a_rank_waits_for_the_slowest(made, clock):
    """This one worked 2 s, the slowest 5: of the 4 s of the reduction 3 were waiting."""
    clock.now += 2 * NS
    made.mark("compute")
    assert made.local_metrics() == [5.0, 0.0, 0.0, 2.0 * NS, 0.0]
    clock.now += 4 * NS
    made.record_wait(told(5, 2, 1))
    record = {}
    assert made.write_to(record) == [5.0, 2.0, 1.0]
    assert (record["wait_s"], record["reduce_s"], record["wall_s"]) == (3.0, 1.0, 6.0)
    assert record["imbalance"] == pytest.approx(5 / (8 / 3), abs=1e-4)
    assert record["memory_bytes"] == 5
    assert "device_bytes" not in record


def test_waiting_is_never_longer_than_the_reduction(made, clock):
    clock.now += NS
    made.record_wait(told(5, 0, 0))
    record = {}
    made.write_to(record)
    assert (record["wait_s"], record["reduce_s"]) == (1.0, 0.0)


def test_ranks_that_meet_twice_a_round_add_up(made, clock):
    """As of algorithms that ask for the cohort's gradient."""
    clock.now += 2 * NS
    made.record_wait(told(1, 2, 3))
    clock.now += NS
    assert made.local_metrics()[3] == 1.0 * NS  # since the ranks met
    made.record_wait(told(1, 1, 2, memory=(7, 9)))
    record = {}
    assert made.write_to(record) == [2.0, 3.0, 5.0]
    assert (record["memory_bytes"], record["device_bytes"]) == (7, 9)
    assert record["imbalance"] == 1.5


@pytest.mark.parametrize("part", ["evaluate", "write"])
def test_a_load_is_counted_from_the_beginning_of_a_round(made, clock, part):
    """What a rank waited for in an evaluation or a checkpoint is no work."""
    clock.now += NS
    made.mark("sample")
    assert made.local_metrics()[3] == 1.0 * NS
    clock.now += NS
    made.mark(part)
    assert made.local_metrics()[3] == 0.0


def test_one_rank_has_no_imbalance(clock):
    alone = RoundTimer(0, 1, torch.device("cpu"), clock)
    clock.now += NS
    alone.record_wait(told(1))
    record = {}
    assert alone.write_to(record) == []
    assert "imbalance" not in record


@pytest.mark.parametrize(
    "key",
    [
        "wall_s",
        "busy_s",
        "clients_per_s",
        "memory_bytes",
        "imbalance",
        "busy_quantiles_s",
        "slowest_rank",
    ],
)
def test_what_another_run_measures_otherwise(key):
    assert measured(key)
    assert not any(map(measured, ("round", "clients", "examples", "up_bytes", "train_loss")))
