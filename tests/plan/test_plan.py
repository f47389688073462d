"""What plan foretells, against by-hand numbers, published ones and real runs."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfl.algorithms import ALGORITHMS
from hpcfl.engine.dry_round import dry_round, traffic
from hpcfl.job.schema import load
from hpcfl.plan import (
    Activations,
    CostModel,
    Process,
    plan,
    predict,
    probe,
    this_process,
    work,
)
from hpcfl.plan.memory import Memory, shared_bytes
from hpcfl.setup.components import build_components
from tests.long_form import long_form

# COMM. OVERHEAD of the FedHBM paper, table 2.
TABLE_2 = {
    "fedavg": 1, "fedprox": 1, "scaffold": 2, "feddyn": 1, "adabest": 1, "mime": 2, "fedavgm": 1,
    "fedcm": 1.5, "fedadc": 1.5, "mimemom": 3, "mimelitemom": 2, "fedhbm": 1,
}  # fmt: skip


SHOWN_PROCESS, STATUS = "hpcfl.plan.show.this_process", "hpcfl.plan.memory.STATUS"


def planned(job, *overrides, ranks=1):
    parts = build_components(load(job, list(overrides)), torch.device("cpu"))
    return plan(parts, ranks, process=Process(0, 0), activations=Activations(0, 0))


def overhead(name):
    algorithm = ALGORITHMS[name]()
    return sum(traffic(algorithm, dry_round(algorithm, 10**6, torch.float64))) / (2 * 8 * 10**6)


@pytest.mark.parametrize(("name", "published"), TABLE_2.items())
def test_overhead_of_the_fedhbm_paper(name, published):
    """MimeMom sends x, m and c down, a gradient and delta up: 2.5, where the paper counts 3."""
    assert overhead(name) == (2.5 if name == "mimemom" else published)


def test_fedmim_sends_its_past_models():
    assert overhead("fedmim") == (1 + 2 + 1) / 2


def test_examples_in_a_mapped_file_take_no_memory(job):
    """40 examples of three float64 features and one int64 label, 12 to test; 40 int64 rows."""
    parts = build_components(load(job), torch.device("cpu"))
    mapped = replace(parts, dataset=replace(parts.dataset, mapped=True))
    held, left = (
        plan(p, 1, process=Process(0, 0), activations=Activations(0, 0)).shares[0].memory.data
        for p in (parts, mapped)
    )
    assert left == 8 * 40
    assert held == left + (40 + 12) * 4 * 8


def test_a_host_has_examples_in_memory_once(job):
    """Inputs and labels as above; the rows of a client are those of its rank alone."""
    parts = build_components(load(job), torch.device("cpu"))
    mapped = replace(parts, dataset=replace(parts.dataset, mapped=True))
    assert shared_bytes(parts) == (40 + 12) * 4 * 8
    assert shared_bytes(mapped) == 0


@pytest.mark.parametrize(
    ("memory", "ranks", "host"),
    [
        # 3 x (100 + 1000 + 900), less the 1000 that two of them do not have.
        ({"program": 100, "data": 1000, "states": 900, "shared": 1000}, 3, 3 * 2000 - 2000),
        # The first rank has the data twice while it copies them; the others wait.
        ({"program": 10, "data": 1000, "shared": 900}, 3, 10 + 1000 + 900 + 2 * 10),
        ({"program": 10, "data": 1000, "shared": 900, "loading": 5000}, 3, 5000 + 2 * 10),
        ({"program": None, "data": 1000, "shared": 900, "loading": None}, 2, 1000 + 900),
        # Every rank of its own: alone on its host, or of data in files.
        ({"program": 10, "data": 1000, "shared": 900, "loading": 1500}, 1, 1500),
        ({"program": 10, "data": 1000, "loading": 1500}, 3, 3 * 1500),
    ],
)
def test_memory_of_a_host_by_hand(memory, ranks, host):
    nothing = Memory(*(0 for _ in Memory._fields))
    assert nothing._replace(**memory).of_host(ranks) == host


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


@pytest.mark.parametrize(
    ("executor", "clients"), [(["executor=sequential"], 1), (["executor=block", "block_size=3"], 3)]
)
def test_the_velocity_of_local_momentum_is_memory(job, executor, clients):
    """A vector of 16 float32 parameters for each client that trains at once."""
    changes = ["algorithm={name: fedavg}", *executor]
    plain, with_velocity = (
        planned(job, *changes, f"local.momentum={mu}").shares[0].memory for mu in (0.0, 0.9)
    )
    assert with_velocity.model - plain.model == 64 * clients
    assert with_velocity._replace(model=plain.model) == plain


@pytest.mark.parametrize(("algorithm", "passes"), [("fedhbm", 1), ("mime", 2), ("mimemvr", 3)])
def test_work_is_counted_in_examples(job, algorithm, passes):
    """One epoch of 10 examples, and another pass where the algorithm takes a full gradient."""
    loaded = load(job, [f"algorithm={{name: {algorithm}}}"])
    assert (
        build_components(loaded, torch.device("cpu")).examples_per_round.tolist()
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
    assert "| at most 4 of 4 take part; 4 rounds of 1 " in text
    assert "3 candidates a round compute the loss of all their examples" in text


def test_candidates_take_time(job):
    """The busiest of 2 ranks owns one or two of three candidates with 10 examples each."""
    cohort = "cohort={kind: power_of_choice, size: 1, candidates: 3}"
    parts = build_components(load(job, [cohort]), torch.device("cpu"))
    costs = CostModel("given", "cpu", 0, 0, 0, 0, 0, 0.5, 0.01, 1.0)
    for ranks, examples, messages in ((1, 30, 0), (2, 20, 2)):
        found = predict(work(parts), ranks, costs)
        plain = predict(replace(work(parts), candidates=None), ranks, costs)
        assert found.choose == pytest.approx(0.5 * examples + 0.01 * messages)
        assert found.hours - plain.hours == pytest.approx(4 * found.choose / 3600)
        assert found.round - plain.round == pytest.approx(found.choose)


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


@pytest.mark.parametrize(
    ("algorithm", "means", "vectors", "steps"),
    [
        ("fedavg", 1, 1, 3),
        ("mimelite", 1, 2, 3 + 3),
        ("mime", 2, 2, 6 + 3),
        ("mimemvr", 3, 3, 6 + 2 * 3),
    ],
)
def test_work_of_full_gradients(job, algorithm, means, vectors, steps):
    """Three batches of a client's ten examples; a full gradient takes as long as they do."""
    loaded = load(job, [f"algorithm={{name: {algorithm}}}", "evaluate.batch_size=10"])
    asked = work(build_components(loaded, torch.device("cpu")))
    assert (asked.means, asked.parameters) == (means, vectors * 16)
    assert asked.steps.tolist() == [steps] * 4


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


def test_fine_tuning_is_said_and_takes_time(job, hpcfl):
    """4 clients, 7 steps and a visit each: of 2 of them on the busiest of 2 ranks."""
    tuned = ["evaluate.personal.steps=7", "data.holdout=0.2"]
    assert (
        "| fine-tuning | 7 steps of each of 4 clients, 3 times" in hpcfl("plan", job, *tuned).text
    )
    costs = CostModel("given", "cpu", 2.0, 0.5, 0, 0, 0, 0, 0.0, 1.0)
    for ranks, clients in ((1, 4), (2, 2)):
        found = work(build_components(load(job, tuned), torch.device("cpu")))
        plain, tuning = (predict(w, ranks, costs) for w in (replace(found, tuning_steps=0), found))
        assert tuning.evaluate - plain.evaluate == clients * (7 * 2.0 + 0.5)
        assert tuning.hours - plain.hours == pytest.approx(3 * clients * 14.5 / 3600)


def test_on_a_gpu_fine_tuning_has_a_graph_of_its_own(job):
    """Whose memory is that of training; elsewhere what one returns the other takes."""

    def model(device, *overrides):
        asked = ["algorithm={name: fedavg}", "executor=block", "data.holdout=0.2", *overrides]
        parts = build_components(load(job, asked), torch.device("cpu"))
        parts = parts.changed(device=torch.device(device))
        made = plan(parts, 1, process=Process(0, 0), activations=Activations(1, 1))
        return made.shares[0].memory

    tuned = "evaluate.personal.steps=7"
    assert model("cpu", tuned) == model("cpu")
    plain, more = model("cuda"), model("cuda", tuned)
    assert more.model > plain.model
    assert more.activations == 2 * plain.activations


def memory(job, *overrides):
    """Of both ranks, in vectors."""
    found = planned(job, *overrides, "algorithm={name: fedavg}", ranks=2)
    return [
        tuple(size / found.vector for size in (m.model, m.cohort, m.sums))
        for m in (share.memory for share in found.shares)
    ]


def test_an_evaluation_of_validation_data(job):
    """A quarter of 4 clients' 10 examples each, rounded to even: 2; 12 are for testing."""
    found = planned(job, "data.validation.share=0.25")
    assert (found.tests, found.validation) == (12, 8)
    parts = build_components(load(job, ["data.validation.share=0.25"]), torch.device("cpu"))
    assert work(parts).tests == 20


@pytest.mark.parametrize(
    ("key", "model", "cohort", "vectors", "scratch"),
    [
        ("evaluate.best=true", (1, 0), 0, 0, 0),
        ("diagnostics.drift=true", (0, 0), 1, 0, 0),
        ("diagnostics.consistency=true", (0, 0), 1, 0, 0),
        ("diagnostics.dissimilarity=true", (0, 0), 1, 3, 1),
        ("diagnostics={drift: true, dissimilarity: true, every: 5}", (0, 0), 0, 0, 0),
    ],
)
def test_memory_of_what_is_watched(job, key, model, cohort, vectors, scratch):
    """One more model, or one a member of the cohort; of float32, whose exact sums are int64."""
    plain, found = memory(job), memory(job, key)
    members = [share.members for share in planned(job, ranks=2).shares]
    for rank in range(2):
        more = [b - a for a, b in zip(plain[rank], found[rank], strict=True)]
        assert more == [model[rank], cohort * members[rank], vectors + scratch * (1 << 22) / 64]


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
    assert "20 of 20 take part; 1 rounds of 3" in hpcfl("plan", job, *changes).text
    assert "warm start" in hpcfl("plan", job, *changes).text
    out = tmp_path / "run"
    assert hpcfl("run", job, *changes, "--out", out).code == 0
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert tuple(sum(r.get(f"{way}_bytes", 0) for r in log) for way in ("down", "up")) == (
        found.in_all
    )


def test_work_of_a_warm_start(job):
    """Seven groups of three clients, or two, of two examples each: a gradient in one batch."""
    changes = ["algorithm={name: scaffold, first: gradient}", "data.clients=20", "cohort.size=3"]
    asked = work(build_components(load(job, changes), torch.device("cpu")))
    once = asked.warm_start
    assert (once.rounds, once.means, once.parameters, once.evaluations) == (7, 1, 16, 0)
    assert once.steps.tolist() == [1] * 20
    assert [once.draw(t).tolist() for t in (0, 6)] == [[0, 1, 2], [18, 19]]
    costs = CostModel(origin="by hand", device="cpu", step_s=2.0, visit_s=0.5, round_s=0.25,
                      convert_s=0.01, restore_s=0.02, test_s=0.0)  # fmt: skip
    more = predict(asked, 1, costs).hours - predict(replace(asked, warm_start=None), 1, costs).hours
    # Clients: a step, a visit and the mean's terms; groups: the mean and the rest.
    assert more * 3600 == pytest.approx(20 * (2 + 0.5 + 0.16) + 7 * (0.32 + 0.25))


def test_lists_that_are_never_played(job, hpcfl):
    """Two of four cohorts are played: 3 visits of 2 clients."""
    cohort = "cohort={kind: replay, rounds: [[1], [1, 3], [0, 1, 2, 3], [0, 2]]}"
    found = planned(job, cohort, "rounds=2")
    assert (found.visits, found.seen, found.cohort) == (3, 2, 1.5)
    assert "| 2 of 4 take part; 2 rounds of 1.5 " in hpcfl("plan", job, cohort, "rounds=2").text


MEASURE = """
import sys
from pathlib import Path
from hpcfl.cli.main import main
code = main(["run", *sys.argv[1:]])
kb = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print("peak", 1024 * int(kb))
sys.exit(code)
"""
PLAN = """
import sys
import torch
import hpcfl.runner.start
from hpcfl.setup.components import build_components
from hpcfl.job.schema import load
from hpcfl.plan import plan, probe, this_process
parts = build_components(load(sys.argv[1], sys.argv[2:]), torch.device("cpu"))
activations = probe(parts)
found = plan(parts, 1, process=this_process(), activations=activations)
print("peak", found.shares[0].memory.total)
"""


def peak(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", "import re\n" + script, *map(str, arguments)],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    return int(re.search(r"peak (\d+)", done.stdout)[1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("algorithm", "watched"),
    [
        pytest.param("fedhbm", "", marks=long_form),
        pytest.param("mime", "", marks=long_form),
        pytest.param("fedavg", "consistency: true, dissimilarity: true", marks=long_form),
        ("fedhbm, first: zero", "executor=block"),
    ],
)
def test_memory_of_a_run(job, arrays, tmp_path, algorithm, watched):
    """2 million parameters: what a run takes beyond its program is 15 to 30 vectors of 8 MB."""
    random = np.random.default_rng(0)
    arrays(x=random.standard_normal((40, 250_000)), y=np.arange(40) % 8, x_test=None, y_test=None)
    changes = [f"algorithm={{name: {algorithm}}}", "cohort.size=4", "evaluate.every=null"]
    changes.append(watched if "=" in watched else f"diagnostics={{{watched}}}")
    measured = peak(MEASURE, job, *changes, "--out", tmp_path / "run")
    # At most, so says the plan; how much of it is there at once, threads that read ahead decide.
    assert 0.85 * measured <= peak(PLAN, job, *changes) <= 1.35 * measured


def test_probe_counts_one_example(job):
    """A linear layer keeps its 3 inputs for the weights, the loss its 4 log-probabilities."""
    parts = build_components(load(job), torch.device("cpu"))
    found = probe(parts)
    assert found.kept >= 4 * (3 + 4)
    assert found.kept <= 4 * (3 + 4) + 2 * 8
    assert this_process().resident > 50e6


def test_plan_prints(job, hpcfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = hpcfl("plan", job, "--ranks", "2", "algorithm={name: mimemom}", "rounds=5")
    assert (done.code, done.err) == (0, [])
    assert done.text.isascii()
    assert max(len(line) for line in done.out if not line.startswith("sbatch")) <= 100
    assert "2.5x FedAvg: 3 + 2 vectors" in done.text
    assert "and one over all its examples" in done.text
    assert re.search(
        r"^runs/job-mimemom-rounds5 needs \d+\.\d kB of disk; .* are free$", done.text, re.MULTILINE
    )
    assert not (tmp_path / "runs").exists()


def table(text):
    """The rows of two columns, by name, sizes in MB."""
    rows = re.findall(r"^\| (\S[^|]*?) +\| +(\S[^|]*?) \|$", text, re.MULTILINE)
    return {name: float(size[:-3]) if size.endswith(" MB") else size for name, size in rows}


def test_memory_rows_add_up(job, hpcfl, monkeypatch):
    monkeypatch.setattr(SHOWN_PROCESS, lambda: Process(300_000_000, 400_000_000))
    rows = table(hpcfl("plan", job, "algorithm={name: fedavg}", "data.clients=20").text)
    names = ["program", "sums", "while training: the sum"]
    assert [name for name in rows if name in names] == names
    assert rows["while loading"] == rows["at a time: the larger of both"] == 400
    assert rows["while training: the sum"] == pytest.approx(300 + rows["sums"], abs=0.2)
    monkeypatch.setattr(SHOWN_PROCESS, lambda: Process(300_000_000, 100_000_000))
    rows = table(hpcfl("plan", job).text)
    assert rows["at a time: the larger of both"] == rows["while training: the sum"] > 300


@pytest.mark.parametrize("content", [None, "Name:\tpython\nVmSize:\t 10 kB\n"])
def test_memory_that_the_system_does_not_tell(job, hpcfl, tmp_path, monkeypatch, content):
    """As on macOS, and as in a container whose kernel tells less."""
    status = tmp_path / "status"
    if content is not None:
        status.write_text(content)
    monkeypatch.setattr(STATUS, status)
    assert this_process() == (None, None)
    done = hpcfl("plan", job)
    assert (done.code, done.err) == (0, [])
    rows = table(done.text)
    assert rows["program"] == rows["while loading"] == "unknown here"
    assert rows["at a time: the larger of both"] == rows["while training: the sum"] < 10


def test_plan_says_what_the_ranks_of_a_host_share(job, hpcfl):
    row = "of it once for all ranks of a host"
    assert re.search(rf"\| +{row} +\| +1.7 kB \|", hpcfl("plan", job, "--ranks", "2").text)
    assert row not in hpcfl("plan", job).text


def test_plan_of_many_ranks_is_a_range(job, hpcfl):
    done = hpcfl("plan", job, "--ranks", "20", "data.clients=20")
    assert re.search(r"\| +most +\| +1 +\| +2 +\|", done.text)
    assert "|   19 |" not in done.text


def test_plan_warns_of_a_small_disk(job, hpcfl, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("hpcfl.plan.show.disk_usage", lambda path: usage)
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
