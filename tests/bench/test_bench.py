"""The bare loop does the engine's work: it ends at the same model, or says that it does not."""

import json
from weakref import ref

import numpy as np
import pytest
import torch
from torch import nn

from hpcfl.bench import round as bench
from hpcfl.bench.result import Measurement
from hpcfl.bench.round import Comparison, measure, report
from hpcfl.errors import HpcflError, JobError
from hpcfl.job.schema import load

PAIRS = 2


class MaskedLayers(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(3, 9), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(9, 4)
        )


class TorchsMasks(nn.Sequential):
    """Draws from torch's generator."""

    def __init__(self):
        super().__init__(nn.Linear(3, 9), nn.Linear(9, 4))

    def forward(self, x):
        return self[1](torch.dropout(self[0](x), 0.5, self.training))


@pytest.fixture
def played(job, arrays, tmp_path, determinism):
    """Measure a job whose clients are of unequal sizes."""
    arrays(client=np.repeat(range(4), (3, 7, 11, 19)))
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))

    def play(*overrides):
        own = ["algorithm={name: fedavg}", "rounds=9", *overrides]
        return measure(load(job, own), tmp_path, PAIRS)

    return play


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["local.lr_decay=0.5"],
        ["local.clip=0.01"],
        ["weights=uniform"],
        ["local.steps=3"],
        ["algorithm.server_lr=0.3"],
        ["local.weight_decay=0.5"],
        ["local.momentum=0.9", "local.nesterov=true", "local.weight_decay=0.5", "local.clip=0.3"],
        ["cohort={kind: bernoulli, p: 0.2}"],  # some rounds are empty
    ],
)
def test_both_sides_train_as_the_job_says(played, overrides):
    turn = played(*overrides)
    assert turn.gap < 1e-3
    assert f"{turn.gap:.1e}" in report([turn])


@pytest.mark.parametrize("model", [MaskedLayers, TorchsMasks])
def test_both_sides_draw_the_same_dropout(played, model):
    of = f"{__name__}.{model.__name__}"
    assert played(f"model={{name: module, of: {of}}}", "local.epochs=2").gap < 1e-3


def test_different_work_is_not_compared(played, monkeypatch):
    loss = bench.LOSSES["cross_entropy"]
    monkeypatch.setattr(bench, "LOSSES", {"cross_entropy": lambda o, y: 1.1 * loss(o, y)})
    with pytest.raises(HpcflError, match=r"engine and bare loop ended a turn .* of its way apart"):
        played()


def test_another_algorithm_has_no_bare_loop_to_agree_with(played):
    turn = played("algorithm={name: scaffold}")
    assert turn.gap is None
    assert report([turn]).endswith(" -")


def test_too_few_rounds_for_the_turns(played):
    with pytest.raises(JobError, match=r"found 2, but 2 turns and a warm-up need at least 3; set"):
        played("rounds=2")


def test_no_round_beyond_the_jobs_is_played(played):
    """Five rounds are not enough for two each: one each, and a list of five cohorts will do."""
    cohorts = "[[0], [1], [2], [3], [0, 1]]"
    assert played("rounds=5", f"cohort={{kind: replay, rounds: {cohorts}}}").gap < 1e-4


def test_the_bare_loop_has_the_batches_of_one_round_at_a_time(played, monkeypatch):
    made, left = [], []
    work = bench.BareLoop._work

    def watched(self, client, round):
        left.extend(t for t, batch in made if t < round and batch() is not None)
        visit = work(self, client, round)
        made.extend((round, ref(batch.inputs)) for batch in visit.batches)
        return visit

    monkeypatch.setattr(bench.BareLoop, "_work", watched)
    played()
    assert {t for t, _ in made} == set(range(9))
    assert not left


def test_visits_are_those_of_the_cohorts_that_were_played(played, tmp_path):
    """The rounds of the warm-up do not count."""
    cohorts = "[[0, 1, 2, 3], [0], [1], [0, 1, 2], [], [2, 3]]"
    turn = played("rounds=6", f"cohort={{kind: replay, rounds: {cohorts}}}")
    assert turn.visits == [4, 2]
    assert turn.visits_of_turn == 3
    (tmp_path / "log.jsonl").unlink()
    drawn = played("cohort={kind: bernoulli, p: 0.3}")
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    log = [line["clients"] for line in lines if "clients" in line]
    assert len(log) == 9
    assert drawn.visits == [sum(log[3:6]), sum(log[6:])]


def test_the_overhead_of_a_visit_is_over_the_visits_of_its_turn():
    engine = Measurement("a", "engine", "s", [0.4, 0.1, 0.8])
    bare = Measurement("a", "bare loop", "s", [0.2, 0.1, 0.4])
    assert Comparison("a", [2, 0, 4], engine, bare, None).overhead_ms == pytest.approx(100)
    none = Comparison("a", [0, 0, 0], engine, bare, None)
    assert none.overhead_ms is None
    assert "- ms/visit" in report([none])
