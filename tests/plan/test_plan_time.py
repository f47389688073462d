"""The time of a round on paper, by hand; costs that are measured, given, and refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from hpcfl.cohort.assignment import Balance, assign_owners
from hpcfl.errors import JobError
from hpcfl.job.schema import load
from hpcfl.plan import CostModel, Work, predict, read_cost_model, scale, work
from hpcfl.runner.components import build_components

ROOT = Path(__file__).parents[2]
COSTS = CostModel(
    origin="by hand", step_s=2.0, visit_s=0.5, round_s=0.25, convert_s=0.01, restore_s=0.02,
    test_s=0.1, latency_s=0.001, bandwidth=1000.0, read=50.0, write=25.0,
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
    taken = parts.examples_per_round if balance == "steal" else None
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
    steps_alone = replace(COSTS, visit_s=0.0, convert_s=0.0, read=None, write=None)
    found = predict(work(parts), 3, steps_alone)
    assert found.busiest == pytest.approx(np.mean(counted))
    assert (found.ship > 0) == (balance == "steal")


def test_large_cohorts_are_drawn_for_fewer_rounds():
    assert WORK.sampled() == range(4)
    many = replace(WORK, rounds=10_000, draw=lambda t: np.zeros(1000, np.int64))
    assert many.sampled() == range(0, 10_000, 100)


def test_costs_of_one_rank_say_nothing_of_two():
    alone = replace(COSTS, latency_s=None, bandwidth=None)
    assert predict(WORK, 1, alone).exchange == 0
    with pytest.raises(JobError, match=r"2 ranks, but they say nothing of an all-reduce"):
        predict(WORK, 2, alone)


def test_measured_costs_make_hours(job, hpcfl, refused, tmp_path):
    file = tmp_path / "costs.json"
    told = hpcfl("bench", "costs", job, "rounds=4", "--json", file)
    assert told.code == 0, told.err
    costs = read_cost_model(file)
    assert costs.origin.startswith("measured with 1 rank(s)")
    assert costs.step_s > 0
    assert costs.device == json.loads(file.read_text())["machine"]["device"] == "cpu"
    assert "costs: ASSUMED" in hpcfl("plan", job).text
    planned = hpcfl("plan", job, "--costs", file)
    assert " in all: " in planned.text
    assert costs.origin in " ".join(planned.text.split())
    assert "with balance" not in planned.text  # on one rank
    assert "rounds: found 1, expected 2 at least" in refused("bench", "costs", job, "rounds=1")
    tree = json.loads(file.read_text())
    tree["about"]["costs"] |= {"latency_s": 1e-6, "bandwidth": 1e9}
    file.write_text(json.dumps(tree))
    owner = hpcfl("plan", job, "--costs", file, "--ranks", 2).out
    steal = hpcfl("plan", job, "--costs", file, "--ranks", 2, "balance=steal").out
    rounds = [next(line for line in told if " in all: " in line) for told in (owner, steal)]
    others = [next(line for line in told if "with balance=" in line) for told in (owner, steal)]
    assert others[0].split("steal: ")[1] in rounds[1]
    assert others[1].split("owner: ")[1] in rounds[0]
    assert max(len(line) for line in [*owner, *steal] if not line.startswith("sbatch")) <= 100
    said = refused("plan", job, "--costs", file, "precision=float64")
    assert "costs: found those of fedhbm on linear of " in said
    assert ", float32, sequential, 1 thread(s); expected fedhbm on linear of " in said


@pytest.mark.parametrize(("device", "gpus"), [("cpu", False), ("cuda", True)])
def test_the_command_for_slurm_is_for_the_device_of_the_costs(
    hpcfl, refused, tmp_path, device, gpus
):
    """Stated speeds would take a GPU for this job; the user measured his own machine."""
    file = tmp_path / "costs.json"
    file.write_text(with_key(device=device, latency_s=1e-6, bandwidth=1e9))
    job = ROOT / "jobs/cifar10/fedhbm_noniid.yaml"
    words = ("plan", job, "--costs", file, "--ranks", 2)
    planned = hpcfl(*words)
    assert ("--gpus-per-node" in planned.out[-2]) == gpus
    assert "do not say on which device" not in planned.text
    assert hpcfl(*words, f"device={device}").code == 0
    other = "cpu" if gpus else "cuda"
    said = refused(*words, f"device={other}")
    assert f"costs: found those of {device}, but the job says device: {other}; measure" in said


def test_costs_of_old_files_do_not_say_their_device(hpcfl, tmp_path):
    (tmp_path / "costs.json").write_text(with_key())
    job = ROOT / "jobs/cifar10/fedhbm_noniid.yaml"
    planned = hpcfl("plan", job, "--costs", tmp_path / "costs.json")
    text = " ".join(planned.text.split())
    assert "costs: they do not say on which device they were measured; the command" in text
    assert "below is for GPUs: measure them again, or add" in text
    planned = hpcfl("plan", job, "--costs", tmp_path / "costs.json", "device=cpu")
    assert "below is for CPUs: measure" in " ".join(planned.text.split())
    assert "--gpus" not in planned.text


GIVEN = {key: value for key, value in COSTS.tree().items() if value is not None}


def with_key(**changes):
    return json.dumps({"costs": {**GIVEN, **changes}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", 'no "costs" in it'),
        ('{"costs": 3}', ": costs: found 3, expected a section (a mapping of keys to values)"),
        ('{"costs": {"origin": "x"}}', ": costs.step_s: missing; it has no default, so it must"),
        (with_key(step_s="1"), ": costs.step_s: found '1', expected a number"),
        (with_key(step_s=0), ": costs.step_s: found 0, expected a number greater than 0"),
        (with_key(read=float("nan")), ": costs.read: found nan, expected a finite number"),
        (with_key(stepp_s=1), ': costs.stepp_s: costs has no "stepp_s" (it has bandwidth, conv'),
        (with_key(stepp_s=1), "; did you mean step_s?"),
    ],
)
def test_bad_costs(job, refused, tmp_path, text, said):
    (tmp_path / "bad.json").write_text(text)
    line = refused("plan", job, "--costs", tmp_path / "bad.json")
    assert said in line
    assert line.startswith(f"JobError: {tmp_path / 'bad.json'}: ")


DRAWN = {
    "clients": 4, "examples": 40, "spread": 0.0, "batch": 5, "epochs": 3, "parameters": 10,
    "state_vectors": 0, "cohorts": [4], "rounds": 2, "evaluations": 1, "tests": 7, "costs": GIVEN,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("a", {"clients": "4"}, ":3: a.clients: found '4', expected a whole number"),
        ("a", {"clients": "4"}, "; YAML reads it as text: write 4"),
        ("a", {"clints": 4}, ':4: a.clints: a has no "clints" (it has balance, batch, clients'),
        ("model", {"clints": 4}, ':4: model.clints: model has no "clints" (it has balance, ba'),
        ("a", {"cohorts": []}, ":4: a.cohorts: found [], expected a list of 1 or more"),
        ("a", {"balance": ["stole"]}, "a.balance.0: found 'stole', expected 'owner' or 'steal'"),
        ("a", {"cohorts": [1, 0]}, "a.cohorts.1: found 0, expected a number greater than or eq"),
        ("a", {"tests": -1}, "a.tests: found -1, expected a number greater than or equal to 0"),
        ("a", {"costs": {**GIVEN, "reed": 1.0}}, 'a.costs.reed: a.costs has no "reed" (it has'),
        ("a", {"costs": {"origin": "x"}}, "a.costs.step_s: missing; it has no default, so it"),
        ("a", {"cohorts": [2, 5]}, "cohorts: found 5, but there are 4 clients; use at most 4"),
        ("a", {"examples": 3}, "found 4 clients and 3 examples, expected an example for each"),
    ],
)
def test_bad_scales(refused, tmp_path, name, changes, said):
    file = tmp_path / "scale.yaml"
    file.write_text(yaml.safe_dump({name: {**DRAWN, **changes}}))
    line = refused("plan", file, "--scale")
    assert said in line
    assert line.startswith(f"JobError: {file}:")
    file.write_text(yaml.safe_dump({name: 3}))
    assert f"{file}:1: {name}: found 3, expected a section" in refused("plan", file, "--scale")


def test_rounds_on_paper(hpcfl, refused, tmp_path):
    """Four clients of 10 examples, all in every round: two ranks take half of the steps."""
    file = tmp_path / "scale.yaml"
    file.write_text(yaml.safe_dump({"a job": DRAWN}))
    told = hpcfl("plan", file, "--scale", "--ranks", 2, "--plot", tmp_path / "x.png")
    one = hpcfl("plan", file, "--scale", "--ranks", 1).out[1]
    _, two, *rest = told.out
    assert "50.850 s  50.000 s" in one  # 24 steps, 4 visits; 0.6 the mean, 0.25 the rest
    assert "25.000 s" in two
    assert "1.00x" in two
    assert rest[0] == ""
    assert (tmp_path / "x.png").stat().st_size > 0
    assert told.out[-1] == "a job: by hand"
    assert "is for --scale" in refused("plan", file, "--plot", tmp_path / "x.png")


def test_the_jobs_of_the_page_are_drawn(hpcfl, tmp_path):
    """Over fewer rounds than docs/scale.md draws them."""
    jobs = yaml.safe_load((ROOT / "docs/scale.yaml").read_text())
    file = tmp_path / "scale.yaml"
    file.write_text(yaml.safe_dump({name: {**job, "rounds": 2} for name, job in jobs.items()}))
    told = hpcfl("plan", file, "--scale", "--ranks", 8, "--plot", tmp_path / "x.png")
    assert told.code == 0, told.err
    assert (tmp_path / "x.png").stat().st_size > 0
    assert {line.split()[0] for line in told.out[1 : told.out.index("")]} == set(jobs)


def test_no_two_lines_of_the_plot_look_the_same(hpcfl, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(scale, "save", lambda figure, paths: figures.append(figure))
    file = tmp_path / "scale.yaml"
    drawn = {**DRAWN, "cohorts": [1, 2, 3, 4], "balance": ["owner", "steal"]}
    file.write_text(yaml.safe_dump(dict.fromkeys(("a", "b", "some long name"), drawn)))
    told = hpcfl("plan", file, "--scale", "--ranks", 4, "--plot", tmp_path / "x.png")
    assert max(map(len, told.out)) <= 100
    lines = figures[0].axes[0].lines
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(lines) == len(looks) == 24
    assert len({line.get_label() for line in lines}) == 24


def test_a_scale_hands_clients_over_where_it_is_asked_to(hpcfl, tmp_path):
    """Unequal clients on two ranks: never slower in steps than by owners, and states travel."""
    given = {**GIVEN, "read": 1e9, "write": 1e9, "bandwidth": 1e9, "latency_s": 0.0}
    drawn = {
        **DRAWN, "clients": 10, "examples": 1000, "spread": 1.0, "state_vectors": 1,
        "balance": ["owner", "steal"], "rounds": 50, "costs": given,
    }  # fmt: skip
    file = tmp_path / "scale.yaml"
    file.write_text(yaml.safe_dump({"job": drawn}))
    _, owner, steal, *_ = hpcfl("plan", file, "--scale", "--ranks", 2).out
    assert [line.split()[:4] for line in (owner, steal)] == [
        ["job", "4", "owner", "2"],
        ["job", "4", "steal", "2"],
    ]
    seconds = [float(line.split()[4]) for line in (owner, steal)]
    assert seconds[1] < 0.9 * seconds[0]


def test_a_file_of_scales_has_no_overrides(refused, tmp_path):
    said = refused("plan", tmp_path / "s.yaml", "landmarks.batch=32", "--scale")
    assert "plan --scale: found landmarks.batch=32; change the file" in said


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--sizes", "{clients: 2}"),
        ("--sizes", ""),
        ("--ranks-per-node", "2"),
        ("--costs", "c.json"),
        ("--pieces", "c.json"),
        ("--out", "runs/a"),
    ],
)
def test_a_file_of_scales_has_no_options_of_a_job(refused, tmp_path, option, value):
    said = refused("plan", tmp_path / "s.yaml", "--scale", option, value)
    assert said == f"JobError: plan --scale: {option} is for a job; leave it out"


def test_a_plots_name_is_looked_at_first(refused, job, tmp_path):
    said = refused("bench", "round", job, "--plot", tmp_path / "a.txt")
    assert "a plot is written as .png, .pdf, .svg" in said


def test_the_old_names_are_taken_and_told_once(job, hpcfl, tmp_path):
    file = tmp_path / "old.json"
    measured = hpcfl("bench", "pieces", job, "rounds=3", "--json", file)
    assert measured.code == 0
    assert measured.err.count("bench pieces is called bench costs now") == 1
    tree = json.loads(file.read_text())["about"]
    new = hpcfl("plan", job, "--costs", file)
    file.write_text(json.dumps({"pieces": tree["costs"]}))
    old = hpcfl("plan", job, "--pieces", file)
    assert old.code == 0
    assert [line for line in old.err if "called" in line] == [
        "plan: --pieces is called --costs now",
        f"{file}: pieces is called costs now",
    ]
    assert [line for line in old.out if " in all: " in line] == [
        line for line in new.out if " in all: " in line
    ]


@pytest.mark.slow
def test_an_old_file_of_scale_says_so_once(hpcfl, tmp_path):
    text, _, _ = (ROOT / "docs/scale.yaml").read_text().partition("\ninaturalist:")
    job = yaml.safe_load(text)["landmarks"]
    del job["forward"]
    for key in ("costs", "pieces"):
        tree = {"landmarks": job | {key: COSTS.tree()}}
        (tmp_path / f"{key}.yaml").write_text(yaml.safe_dump(tree))
    new, old = (
        hpcfl("plan", tmp_path / name, "--scale", "--ranks", 8)
        for name in ("costs.yaml", "pieces.yaml")
    )
    assert old.out == new.out
    told = [line for line in old.err if "called" in line]
    assert told == [f"{tmp_path}/pieces.yaml: pieces is called costs now"]


def test_ranks_that_train_no_client_are_told(job, hpcfl):
    """Cohorts of 2 clients."""
    said = "a round has 2 clients on average: at least 1 of 3 ranks train none"
    assert said in hpcfl("plan", job, "--ranks", 3).out
    assert "on average" not in hpcfl("plan", job, "--ranks", 2).text
