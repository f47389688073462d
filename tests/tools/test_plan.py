"""What plan foretells, against by-hand numbers, published ones and real runs."""

import json
import re

import numpy as np
import pytest
import torch

from hpcfl.algorithms import ALGORITHMS
from hpcfl.engine.dry_round import dry_round, traffic
from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from hpcfl.tools.plan.resources import plan

# COMM. OVERHEAD of the FedHBM paper, table 2.
TABLE_2 = {
    "fedavg": 1, "fedprox": 1, "scaffold": 2, "feddyn": 1, "adabest": 1, "mime": 2, "fedavgm": 1,
    "fedcm": 1.5, "fedadc": 1.5, "mimemom": 3, "mimelitemom": 2, "fedhbm": 1,
}  # fmt: skip


def planned(job, *overrides, ranks=1):
    return plan(build_components(load(job, list(overrides)), torch.device("cpu")), ranks)


def overhead(name):
    algorithm = ALGORITHMS[name]()
    return sum(traffic(algorithm, dry_round(algorithm, 10**6, torch.float64))) / (2 * 8 * 10**6)


@pytest.mark.parametrize(("name", "published"), TABLE_2.items())
def test_overhead_of_the_fedhbm_paper(name, published):
    """MimeMom sends x, m and c down, a gradient and delta up: 2.5, where the paper counts 3."""
    assert overhead(name) == (2.5 if name == "mimemom" else published)


def test_fedmim_sends_its_past_models():
    assert overhead("fedmim") == (1 + 2 + 1) / 2


def test_a_small_job_by_hand(job, hpcfl):
    """3 x 4 + 4 parameters; 40 examples of 4 clients, 10 each: 3 batches of 4."""
    found = planned(job, ranks=2)
    assert (found.parameters, found.vector, found.population) == (16, 64, 4)
    assert (found.steps, found.gradients, found.full_gradient_rounds) == ((3, 3), 1, 0)
    assert found.traffic == (64, 64)
    assert found.in_all == (64 * 2 * 4, 64 * 2 * 4)
    assert (found.overhead, found.own, found.shared, found.server) == (1, 64 + 4, 0, 64)
    assert [share.clients for share in found.shares] == [2, 2]
    assert [share.examples for share in found.shares] == [20, 20]
    job_of_it = load(job, []).job
    drawn = [job_of_it.cohort.draw(t, 4, job_of_it.seed) for t in range(4)]
    assert found.seen == len(set(np.concatenate(drawn)))
    assert found.disk_budget.checkpoints == 3


def test_a_block_with_more_places_than_a_rank_has_clients_is_told(job, hpcfl):
    line = "a block of 2 places for {}: those without a client are computed too;"
    many = ("executor=block", "cohort.size=2")

    def said(*words):
        return " ".join(" ".join(hpcfl(*words[:1], job, *words[1:]).out).split())

    assert line.format("at most 1 client a rank") in said("plan", *many, "--ranks", "4")
    several = said("plan", *many, "--ranks", "1,4")
    assert line.format("at most 1 client a rank of 4") in several
    assert several.count("a block of") == 1
    assert "a block of" not in said("plan", *many)
    assert "a block of" not in said("plan", "cohort.size=2", "--ranks", "4")
    one = ("executor=block", "block_size=2", "--data")
    assert line.format("a cohort of 1") in said("check", *one, "cohort.size=1")
    assert "a block of" not in said("check", *one, "cohort.size=2")


@pytest.mark.parametrize(("algorithm", "passes"), [("fedhbm", 1), ("mime", 2), ("mimemvr", 3)])
def test_work_is_counted_in_examples(job, algorithm, passes):
    """One epoch of 10 examples, and another pass where the algorithm takes a full gradient."""
    loaded = load(job, [f"algorithm={{name: {algorithm}}}"])
    assert (
        build_components(loaded, torch.device("cpu")).population.examples_per_round.tolist()
        == [10 * passes] * 4
    )


@pytest.mark.parametrize("balance", ["owner", "steal"])
def test_what_losses_choose_is_bounded_by_the_candidates(job, hpcfl, balance):
    """Of 4 clients 3 are asked; only the loss says which 1 trains, wherever it is owned."""
    cohort = "cohort={kind: power_of_choice, size: 1, candidates: 3}"
    found = planned(job, cohort, f"balance={balance}", ranks=2)
    assert (found.visits, found.seen, found.cohort) == (4, 4, 1)
    assert [share.members for share in found.shares] == [1, 1]
    assert found.choice == (2 * 64, 3 * 4)
    text = hpcfl("plan", job, cohort).text
    assert "| 4 of 1 client; at most 4 of 4 take part " in text
    assert "3 candidates a round compute the loss of all their examples" in text


def test_members_that_a_rank_trains(job):
    """Of four equal clients rank 0 owns 0 and 2."""
    cohorts = "cohort={kind: replay, rounds: [[0, 2], [1], [0, 2], [2]]}"
    for balance, members in (("owner", [2, 1]), ("steal", [1, 1])):
        found = planned(job, cohorts, f"balance={balance}", ranks=2)
        assert [share.members for share in found.shares] == members
        assert [share.clients for share in found.shares] == [2, 2]


@pytest.mark.parametrize(
    ("algorithm", "gradients", "surveys", "points"),
    [
        ("fedsam", 2, 0, 0),
        ("mime", 2, 4, 1),
        ("mimelite", 1, 4, 1),
        ("mimemvr", 2, 4, 2),
        ("fedavg", 1, 0, 0),
    ],
)
def test_gradients(job, algorithm, gradients, surveys, points):
    found = planned(job, f"algorithm={{name: {algorithm}}}")
    assert (found.gradients, found.full_gradient_rounds) == (gradients, surveys)
    assert found.full_gradients == points


@pytest.mark.parametrize(("every", "surveys"), [(1, 4), (3, 1), (5, 0)])
def test_dissimilarity_takes_full_gradients(job, hpcfl, every, surveys):
    watched = f"diagnostics={{dissimilarity: true, every: {every}}}"
    assert planned(job, watched).full_gradient_rounds == surveys
    text = hpcfl("plan", job, watched).text
    assert ("round, and one over all its examples " in text) == (surveys == 4)
    assert ("| and one over all its examples, in 1 of the rounds " in text) == (surveys == 1)


def test_two_full_gradients_are_said(job, hpcfl):
    text = hpcfl("plan", job, "algorithm={name: mimemvr}").text
    assert "and 2 over all its examples" in text
    assert "3x FedAvg: 3 + 3 vectors" in text


@pytest.mark.parametrize(
    ("algorithm", "work"),
    [
        ("{name: fedavg}", "a gradient per client"),
        ("{name: fedntd}", "a gradient and 1 forward pass per client"),
        ("{name: moon}", "a gradient and 2 forward passes per client"),
        ("{name: fedlc}", "a gradient per client"),  # a loss of its own, from the same pass
    ],
)
def test_forward_passes_of_a_step_are_said(job, hpcfl, algorithm, work):
    assert f"steps of {work}" in hpcfl("plan", job, f"algorithm={algorithm}").text
    one = hpcfl("plan", job, f"algorithm={algorithm}", "local.steps=1").text
    assert f"| 1 step of {work}" in one


def test_fine_tuning_is_said(job, hpcfl):
    tuned = ["evaluate.personal.steps=7", "data.holdout=0.2"]
    assert (
        "| fine-tuning | 7 steps of each of 4 clients, 3 times" in hpcfl("plan", job, *tuned).text
    )


def test_an_evaluation_of_validation_data(job):
    """A quarter of 4 clients' 10 examples each, rounded to even: 2; 12 are for testing."""
    found = planned(job, "data.validation.share=0.25")
    assert (found.tests, found.validation) == (12, 8)


def size(root):
    if root.is_file():
        return root.stat().st_size
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        *((name, []) for name in ("fedavg", "fedhbm", "adabest", "ghb", "fedmim")),
        ("scaffold, first: gradient", []),
        ("localghb", ["evaluate.best=true"]),
    ],
)
def test_disk_of_a_run(job, tmp_path, hpcfl, algorithm, more):
    """No part takes more than was said, and a checkpoint not much less."""
    changes = [
        *more,
        f"algorithm={{name: {algorithm}}}", "data.clients=20", "rounds=11",
        "cohort.size=3", "checkpoint={every: 3, keep: 2}",
    ]  # fmt: skip
    out = tmp_path / "run"
    assert hpcfl("run", job, *changes, "--out", out).code == 0
    found = planned(job, *changes)
    assert size(out / "stores") <= found.disk_budget.stores
    newest = max((out / "checkpoints").iterdir())
    files = len(list(newest.rglob("*")))
    assert 0 <= found.disk_budget.checkpoint - size(newest) <= 4096 * files
    assert len(list((out / "checkpoints").iterdir())) == found.disk_budget.checkpoints - 1
    aside = ("events", "history.jsonl", "job.yaml", "log.jsonl")
    taken = sum(size(part) for part in out.iterdir() if part.name not in aside)
    assert taken <= found.disk_budget.total


@pytest.mark.parametrize(
    "cohort",
    [
        "{kind: cyclic, size: 3}",
        "{kind: bernoulli, p: 0.3}",
        "{kind: replay, rounds: [[1], [], [1, 3], [0, 1, 2, 3]]}",
        "{kind: importance, size: 3}",
        "{kind: power_of_choice, size: 2, candidates: 3}",
    ],
)
def test_traffic_of_a_run(job, tmp_path, hpcfl, cohort):
    changes = ["algorithm={name: mimemom}", f"cohort={cohort}", "rounds=3"]
    out = tmp_path / "run"
    assert hpcfl("run", job, *changes, "--out", out).code == 0
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    spent = [sum(entry.get(f"{way}_bytes", 0) for entry in log) for way in ("down", "up")]
    found = planned(job, *changes)
    assert tuple(spent) == found.in_all
    assert found.visits == sum(entry.get("clients", 0) for entry in log)


@pytest.mark.parametrize(("ranks", "rank_members"), [(1, [3]), (2, [2, 2])])
def test_a_warm_start_is_counted(job, tmp_path, hpcfl, ranks, rank_members):
    """Of 20 clients of 16 float32 parameters; a round has three.  All of them have a state."""
    changes = ["algorithm={name: scaffold, first: gradient}", "data.clients=20", "cohort.size=3",
               "rounds=1"]  # fmt: skip
    found = planned(job, *changes, ranks=ranks)
    assert found.warm_start == (20 * 64, 20 * 64)
    assert found.in_all == ((20 + 3 * 2) * 64, (20 + 3 * 2) * 64)
    assert found.seen == 20
    assert [share.members for share in found.shares] == rank_members
    assert "| 1 of 3 clients; 20 of 20 take part" in hpcfl("plan", job, *changes).text
    assert "warm start" in hpcfl("plan", job, *changes).text
    out = tmp_path / "run"
    assert hpcfl("run", job, *changes, "--out", out).code == 0
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert tuple(sum(r.get(f"{way}_bytes", 0) for r in log) for way in ("down", "up")) == (
        found.in_all
    )


def test_lists_that_are_never_played(job, hpcfl):
    """Two of four cohorts are played: 3 visits of 2 clients."""
    cohort = "cohort={kind: replay, rounds: [[1], [1, 3], [0, 1, 2, 3], [0, 2]]}"
    found = planned(job, cohort, "rounds=2")
    assert (found.visits, found.seen, found.cohort) == (3, 2, 1.5)
    assert "| 2 of 1.5 clients; 2 of 4 take part " in hpcfl("plan", job, cohort, "rounds=2").text


def test_plan_prints(job, hpcfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = hpcfl("plan", job, "--ranks", "2", "algorithm={name: mimemom}", "rounds=5")
    assert (done.code, done.err) == (0, [])
    assert done.text.isascii()
    assert max(len(line) for line in done.out if not line.startswith("sbatch")) <= 100
    assert "2.5x FedAvg: 3 + 2 vectors" in done.text
    assert "and one over all its examples" in done.text
    assert re.search(
        r"disk +\| \d+\.\d kB in runs/job-mimemom-rounds5, where .* are free: client states ",
        done.text,
    )
    assert re.search(r"memory +\| \d+\.\d MB a rank or more: the program 250.0 MB, ", done.text)
    assert not (tmp_path / "runs").exists()


def test_plan_of_many_ranks_is_a_range(job, hpcfl):
    done = hpcfl("plan", job, "--ranks", "20", "data.clients=20")
    assert re.search(r"\| +most +\| +1 +\| +2 +\|", done.text)
    assert "|   19 |" not in done.text


def test_plan_warns_of_a_small_disk(job, hpcfl, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("hpcfl.tools.plan.show.disk_usage", lambda path: usage)
    done = hpcfl("plan", job)
    assert done.code == 0
    assert re.search("^WARNING: .*10 bytes are free$", done.text, re.MULTILINE)


def test_plan_of_more_ranks_than_clients(job, refused):
    assert "5 ranks for 4 clients" in refused("plan", job, "--ranks", "5")


@pytest.mark.parametrize("ranks", ["0", "two"])
def test_plan_wants_a_count(job, hpcfl, ranks):
    with pytest.raises(SystemExit) as end:
        hpcfl("plan", job, "--ranks", ranks)
    assert end.value.code == 2
