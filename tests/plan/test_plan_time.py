"""The time of a round on paper, by hand; costs that are measured."""

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfl.cohort.assignment import Balance, assign_owners
from hpcfl.errors import JobError
from hpcfl.job.schema import load
from hpcfl.plan import CostModel, Work, measure, predict, work
from hpcfl.plan.timed_rounds import build_timed_run
from hpcfl.setup.components import build_components
from tests.parallel.harness import find_mpirun

ROOT = Path(__file__).parents[2]
COSTS = CostModel(
    origin="by hand", device="cpu", step_s=2.0, visit_s=0.5, round_s=0.25, convert_s=0.01,
    restore_s=0.02, test_s=0.1, latency_s=0.001, bandwidth=1000.0, read=50.0, write=25.0,
)  # fmt: skip
# Steps 4, 3, 2, 1: the largest first, ranks 0 and 1 own clients 0 and 3, and 1 and 2.
WORK = Work(
    steps=np.array([4, 3, 2, 1]), draw=lambda t: np.array([0, 3] if t % 2 else [0, 1, 2]),
    examples=np.array([4, 3, 2, 1]), taken=np.array([40, 30, 20, 10]), balance="owner",
    parameters=10, means=1, state=100, sent=150, tests=7, rounds=4, evaluations=2,
)  # fmt: skip


def test_one_rank_by_hand():
    """Visits take 0.5 + 2 + 4; rounds of 9 and 5 steps of three and two clients in turn."""
    found = predict(WORK, 1, COSTS)
    assert found.train == pytest.approx(((18 + 3 * 6.5) + (10 + 2 * 6.5)) / 2)
    assert found.convert == pytest.approx((0.3 + 0.2) / 2 + 0.2)
    assert found.exchange == 0
    assert found.busiest == 1
    assert found.evaluate == pytest.approx(0.7)
    assert found.hours == pytest.approx((4 * found.round + 2 * 0.7) / 3600)


@pytest.mark.parametrize(
    ("holdout", "overrides", "passes"),
    [
        (None, ("evaluate.train=true",), (1, 0)),
        (None, ("evaluate.train=true", "evaluate.clients=true"), (1, 0)),
        (0.5, ("evaluate.clients=true",), (0, 1)),
        (
            0.5,
            ("evaluate.train=true", "evaluate.clients=true", "evaluate.local_models=true"),
            (1, 2),
        ),
    ],
)
def test_examples_of_an_evaluation(holdout, overrides, passes):
    """Passes over the clients' training examples, and over those that they hold out."""
    words = ("algorithm={name: fedhbm}", f"data.holdout={holdout or 'null'}")
    parts = [
        build_components(load(ROOT / "jobs/quickstart.yaml", (*words, *more)), torch.device("cpu"))
        for more in ((), overrides)
    ]
    training, held = (
        sum(map(len, rows or ())) for rows in (parts[0].rows, parts[0].split.held_out)
    )
    assert work(parts[0]).tests == len(parts[0].tests())
    assert work(parts[1]).tests - work(parts[0]).tests == passes[0] * training + passes[1] * held


def test_two_ranks_by_hand():
    """Even rounds: 4 steps and a visit, or 5 and two visits; odd ones: 5 and two, or nothing."""
    found = predict(WORK, 2, COSTS)
    assert found.train == pytest.approx(10 + 13)
    assert found.convert == pytest.approx(0.2 + 0.2)
    assert found.busiest == pytest.approx((5 / 4.5 + 5 / 2.5) / 2)
    assert found.exchange == pytest.approx(2 * 2 * 0.001 + 80 / 1000)
    assert found.evaluate == pytest.approx(0.4)


def test_more_ranks_send_more_messages_and_hardly_more_bytes():
    found = predict(WORK, 4, COSTS)
    assert found.exchange == pytest.approx(2 * 4 * 0.001 + 2 * 3 / 4 * 80 / 1000)


# Ranks 0 and 1 own clients 0 and 2, and 1 and 3.
EQUAL = replace(WORK, examples=np.ones(4, np.int64), draw=lambda t: np.array([0, 1 + (t + 1) % 2]))


def test_ranks_own_by_examples_and_not_by_steps():
    """Clients 0 and 2 of rank 0: two visits, 6 steps and two states, all on one rank."""
    found = predict(replace(EQUAL, rounds=1), 2, COSTS)
    assert found.train == pytest.approx(6 * 2 + 2 * 0.5 + 2 * 6)
    assert found.busiest == 2


def test_handing_over_by_hand():
    """Even rounds: client 2 goes to rank 1, its state of 150 bytes there and 100 back.

    The busiest trains client 0 and reads and writes both states.  Odd ones, of 4 and 3 steps on
    either rank, move nobody.
    """
    stealing = replace(EQUAL, balance="steal")
    one = predict(replace(stealing, rounds=1), 2, COSTS)
    assert one.train == pytest.approx(4 * 2 + 0.5 + 2 * 6)
    assert one.convert == pytest.approx(0.1 + 0.2)
    assert one.ship == pytest.approx(2 * 0.001 + 2 * 0.001 + (150 + 100) / 1000)
    assert one.busiest == pytest.approx(4 / 3)
    assert one.round == pytest.approx(one.train + 0.3 + one.exchange + one.ship + 0.25)
    found = predict(stealing, 2, COSTS)
    assert found.train == pytest.approx((one.train + 4 * 2 + 0.5 + 6) / 2)
    assert found.ship == pytest.approx(one.ship / 2)
    assert found.hours == pytest.approx((4 * found.round + 2 * found.evaluate) / 3600)
    assert predict(stealing, 1, COSTS) == predict(EQUAL, 1, COSTS)


def test_the_rank_that_hands_over_most_is_waited_for():
    """Six equal clients of rank 0 of three: 4 leave it, 2 come to either of the others."""
    ones = np.ones(18, np.int64)
    crowd = replace(
        WORK, steps=ones, examples=ones, taken=ones, balance="steal", rounds=1,
        draw=lambda t: np.arange(0, 18, 3),
    )  # fmt: skip
    found = predict(crowd, 3, COSTS)
    assert found.ship == pytest.approx(2 * 2 * 0.001 + 4 * (0.002 + 0.25))
    assert found.busiest == 1
    assert predict(replace(crowd, sent=0, state=0), 3, COSTS).ship == 0  # nobody remembers


@pytest.mark.parametrize("balance", ["owner", "steal"])
def test_the_busiest_is_the_one_of_a_run(job, arrays, balance):
    """Steps counted from the duties that the ranks of a run would have."""
    sizes = (1, 2, 2, 3, 3, 5, 8, 16)
    arrays(client=np.repeat(range(8), sizes))
    job.write_text(job.read_text().replace(", clients: 4, partition: {kind: iid}", ""))
    wanted = ["rounds=30", "cohort.size=4", "local.epochs=2", f"balance={balance}"]
    parts = build_components(load(job, wanted), torch.device("cpu"))
    steps = [2 * -(-size // 4) for size in sizes]
    asked = work(parts)
    taken = (lambda t: asked.in_round(t)[2]) if balance == "steal" else None
    ranks = [
        Balance(
            lambda t: parts.job.cohort.draw(t, 8, 0), 30, assign_owners(sizes, 3), taken, rank, 3
        )
        for rank in range(3)
    ]
    counted = [
        max(done) / np.mean(done)
        for t in range(30)
        for done in [[sum(steps[i] for i in rank.assignment(t).trained) for rank in ranks]]
    ]
    steps_alone = COSTS._replace(visit_s=0.0, convert_s=0.0, read=None, write=None)
    found = predict(asked, 3, steps_alone)
    assert found.busiest == pytest.approx(np.mean(counted))
    assert (found.ship > 0) == (balance == "steal")


def test_large_cohorts_are_drawn_for_fewer_rounds():
    assert WORK.sampled() == range(4)
    many = replace(WORK, rounds=10_000, draw=lambda t: np.zeros(1000, np.int64))
    assert many.sampled() == range(0, 10_000, 100)


def test_costs_of_one_rank_say_nothing_of_two():
    alone = COSTS._replace(latency_s=None, bandwidth=None)
    assert predict(WORK, 1, alone).exchange == 0
    with pytest.raises(JobError, match=r"found 2 ranks, but costs that say nothing of an all-r"):
        predict(WORK, 2, alone)


def test_a_plan_says_hours_where_it_measures(job, hpcfl, refused):
    alone = hpcfl("plan", job)
    assert "hours: not measured; add --measure" in alone.text
    assert "-t 24:00:00 slurm/run.sh" in alone.out[-1]
    planned = hpcfl("plan", job, "--measure")
    assert planned.code == 0, planned.err
    assert " in all: " in planned.text
    assert "costs: measured with 1 rank(s) at once on " in planned.text
    assert "with balance" not in planned.text  # on one rank
    assert "-t 00:20:00 slurm/run.sh" in planned.out[-1]
    said = refused("plan", job, "--measure", "--ranks", 2)
    assert "found 2 ranks, but costs that say nothing of an all-reduce" in said
    said = refused("plan", job, "--measure", "rounds=1", "checkpoint.every=1", "evaluate.every=1")
    assert "rounds: found 1, expected 2 at least" in said


@pytest.mark.usefixtures("forked_python")
def test_two_ranks_measure_and_one_prints(job):
    command = [find_mpirun(), "-n", "2", sys.executable, "-m", "hpcfl", "plan", str(job)]
    done = subprocess.run(
        [*command, "--measure"], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.count(" in all: ") == 1
    assert "measured with 2 rank(s) at once" in done.stdout
    assert "with balance=steal: " in done.stdout
    failed = subprocess.run(
        [*command, "--measure", "rounds=1", "checkpoint.every=1", "evaluate.every=1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert failed.returncode == 2
    assert failed.stderr.count("JobError: rounds: found 1, expected 2") == 1


READ_S, MODEL_S = 3.0, 2.0  # of an example


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def pass_by(self, seconds):
        self.now += seconds


@pytest.mark.parametrize("size", [2, 5, 12, 40])
def test_a_test_has_the_time_in_which_its_batch_is_made(
    job, tmp_path, monkeypatch, determinism, size
):
    """Of 12 examples; the first batch warms up if there is another."""
    clock = Clock()
    monkeypatch.setattr(measure, "perf_counter", clock)
    with ExitStack() as stack:
        loaded = load(job, [f"evaluate.batch_size={size}"])
        timed = build_timed_run(loaded, tmp_path, stack)
        dataset, gradient = timed.components.dataset, timed.components.gradient()
        transform, predict = dataset.transform, gradient.predict

        def slow_transform(inputs, *rest):
            clock.pass_by(READ_S * len(inputs))
            return transform(inputs, *rest)

        def slow_predict(x, inputs):
            clock.pass_by(MODEL_S * len(inputs))
            return predict(x, inputs)

        monkeypatch.setattr(gradient, "predict", slow_predict)
        components = replace(timed.components, dataset=replace(dataset, transform=slow_transform))
        monkeypatch.setattr(type(components), "gradient", lambda self: gradient)
        assert measure._test(timed._replace(components=components)) == READ_S + MODEL_S


def test_ranks_that_train_no_client_are_told(job, hpcfl):
    """Cohorts of 2 clients."""
    said = "a round has 2 clients on average: at least 1 of 3 ranks train none"
    assert said in hpcfl("plan", job, "--ranks", 3).out
    assert "on average" not in hpcfl("plan", job, "--ranks", 2).text
