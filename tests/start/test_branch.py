"""Branches: new runs that begin at a round of another with other settings."""

import json

import pytest

from hpcfl.io import checksum
from hpcfl.runs.branches import read_branches
from hpcfl.runs.manifest import committed, rounds
from hpcfl.runs.record import read_run
from hpcfl.tools.report.groups import group_by_seed
from tests.faults.scaffold_run import killed
from tests.forked import finish
from tests.parallel.outcome import outcome
from tests.rundirs import flip, starts, text

pytestmark = pytest.mark.slow
CHANGE = {"key": "local.lr", "before": 0.1, "after": 0.03}


@pytest.fixture
def run(job, tmp_path, hpcfl):
    """A run of six rounds, of which 0, 2, 4 and 6 are kept."""
    out = tmp_path / "run"
    settings = ("rounds=6", "checkpoint.keep=9")
    assert hpcfl("run", job, *settings, "--out", out).code == 0
    return out


@pytest.fixture
def branch(run, tmp_path, hpcfl):
    """Begin a branch in ``tmp_path / name``; its directory, and the lines that it prints."""

    def begin(name, *settings, at=2, of=run):
        copy = tmp_path / name
        done = hpcfl("resume", of, *settings, "--round", at, "--out", copy)
        assert done.code == 0, done.err
        return copy, done.err

    return begin


def test_a_branch_says_where_it_comes_from(run, branch, hpcfl):
    before = text(run)
    copy, lines = branch("copy", "local.lr=0.03", "rounds=8")
    said = f"branch of {run} at round 2: local.lr 0.1 -> 0.03"
    assert said in lines
    assert text(run) == before
    assert read_branches(copy / "branches.json") == ((str(run), 2, (CHANGE,)),)
    _, branched, own = starts(copy)
    assert (branched["branch_of"], branched["round"]) == (str(run), 2)
    assert branched["changes"] == [CHANGE]
    assert own["changes"] == [{"key": "rounds", "before": 6, "after": 8}]
    assert f"branch      {said.removeprefix('branch ')}" in hpcfl("status", copy).out


def test_it_has_the_past_of_its_parent(run, branch):
    copy, _ = branch("copy", "local.lr=0.03")
    found, parent = outcome(copy), outcome(run)
    assert found.log[:3] == parent.log[:3]
    assert found.log[3]["train_loss"] != parent.log[3]["train_loss"]
    assert found.round == 6
    jobs = {checkpoint.job for checkpoint in committed(copy / "checkpoints")}
    assert len(jobs) == 1
    assert jobs.isdisjoint(checkpoint.job for checkpoint in committed(run / "checkpoints"))


def test_a_branch_at_round_0_is_a_fresh_run(job, branch, tmp_path, hpcfl):
    """With cohorts, batches, weights and a schedule of its own."""
    changes = ("local.lr=0.03", "local.schedule=cosine", "local.epochs=2", "local.batch_size=5",
               "local.weight_decay=0.01", "local.clip=1.0", "cohort={kind: bernoulli, p: 0.75}",
               "weights=uniform", "rounds=5", "algorithm.server_lr=0.9",
               "algorithm.participation=0.75", "evaluate.batch_size=7")  # fmt: skip
    copy, _ = branch("copy", *changes, at=0)
    assert hpcfl("run", job, *changes, "checkpoint.keep=9", "--out", tmp_path / "fresh").code == 0
    assert outcome(copy) == outcome(tmp_path / "fresh")
    assert (copy / "job.yaml").read_bytes() == (tmp_path / "fresh" / "job.yaml").read_bytes()


def test_a_branch_back_to_the_first_settings_is_the_parent_again(run, branch):
    """Nothing but the settings is another: a round with the old rate has the old bits."""
    away, _ = branch("away", "local.lr=0.03", "rounds=4", at=2)
    back, _ = branch("back", "local.lr=0.1", "rounds=6", at=2, of=away)
    found, whole = outcome(back), outcome(run)
    assert (found.server, found.clients) == (whole.server, whole.clients)
    courses = [b.course for b in read_run(back).branches]
    assert courses == ["at round 2: local.lr 0.1 -> 0.03", "at round 2: local.lr 0.03 -> 0.1"]


def test_a_branch_of_a_branch(run, branch):
    first, _ = branch("first", "local.lr=0.03")
    second, lines = branch("second", "cohort.size=3", at=4, of=first)
    assert f"branch of {run} at round 2: local.lr 0.1 -> 0.03" in lines
    assert f"branch of {first} at round 4: cohort.size 2 -> 3" in lines
    note = "algorithm.participation is 0.5 as before; the default for these cohorts: 0.75"
    assert note in lines
    assert outcome(second).log[:5] == outcome(first).log[:5]
    copied, _ = branch("copied", "rounds=7", at=6, of=second)  # continues it: no third branch
    assert read_branches(copied / "branches.json") == read_branches(second / "branches.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("seed=1", "the clients' examples and first states follow from it"),
        ("data.clients=5", "the client states are of these clients"),
        ("model.name=logistic", "the parameters of this model"),
        ("algorithm={name: fedavg}", "are of this method"),
        ("precision=float64", "another dtype in float64"),
        ("store.dtype=bfloat16", "the stored states are of this dtype"),
        ("cohort={kind: replay, path: c.json}", "use cohort.rounds"),
    ],
)
def test_what_a_branch_keeps(run, tmp_path, refused, change, reason):
    line = refused("resume", run, change, "--round", 2, "--out", tmp_path / "copy")
    assert reason in line
    assert "start a new run: `hpcfl run " in line
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.parametrize(
    ("algorithm", "change", "reason"),
    [
        ("{name: ghb, tau: 2}", "algorithm.tau=3", "tau 2 -> 3: the states of the server or"),
        ("{name: scaffold}", "algorithm.first=gradient", "the states before round 1"),
    ],
)
def test_states_of_another_form_are_refused(
    job, tmp_path, hpcfl, refused, algorithm, change, reason
):
    out = tmp_path / "run"
    assert hpcfl("run", job, f"algorithm={algorithm}", "--out", out).code == 0
    line = refused("resume", out, change, "--round", 2, "--out", tmp_path / "copy")
    assert reason in line
    assert not list(tmp_path.glob("copy*"))


def test_without_a_copy_the_line_says_how_to_branch(run, refused):
    line = refused("resume", run, "local.lr=0.03")
    assert f"`hpcfl resume {run} local.lr=0.03 --round T --out NEW` branches it" in line
    assert "branches it" not in refused("resume", run, "seed=1")


def test_a_branch_without_a_round_left_is_refused(run, tmp_path, refused):
    line = refused("resume", run, "local.lr=0.03", "--out", tmp_path / "copy")
    assert f"rounds: a branch at round 6 of {run} has no round left" in line


@pytest.mark.parametrize("damage", ["flip", "unlink", "edit"])
def test_where_it_comes_from_cannot_get_lost(branch, refused, damage):
    copy, _ = branch("copy", "local.lr=0.03")
    path = copy / "branches.json"
    if damage == "flip":
        flip(path, 30)
    elif damage == "unlink":
        path.unlink()
    else:  # with a checksum that is right
        path.write_bytes(_with_round(path, 4))
    assert str(path) in refused("resume", copy, "rounds=9")
    if damage != "edit":
        assert str(path) in refused("report", copy)


def _with_round(path, round):
    found = json.loads(checksum.remove_from_json(path.read_bytes()))
    found["branches"][0]["round"] = round
    return checksum.add_to_json(json.dumps(found))


def test_a_branch_that_is_killed_goes_on_on_other_ranks(run, branch, tmp_path):
    """With the bits of a branch that was not stopped, whoever begins it and whoever goes on."""
    whole, _ = branch("whole", "local.lr=0.03", "cohort.size=3", "rounds=8")
    begin = ("resume", run, "local.lr=0.03", "cohort.size=3", "--round", 2)
    dead = killed(tmp_path / "dead", 5, *begin, "rounds=8").root
    assert rounds(dead / "checkpoints")[-1] in (2, 4)  # that of 4 may not have been committed
    ended = finish(2, "resume", dead)
    assert ended.returncode == 0, ended.stderr
    assert outcome(dead) == outcome(whole)
    ended = finish(2, *begin, "rounds=4", "--out", tmp_path / "two")
    assert ended.returncode == 0, ended.stderr
    assert finish(1, "resume", tmp_path / "two", "rounds=8").returncode == 0
    assert outcome(tmp_path / "two") == outcome(whole)


def test_a_report_tells_branches_from_fresh_runs(job, run, branch, tmp_path, hpcfl):
    """With the same settings at the end; over two seeds they are one job, by their courses."""
    lower, _ = branch("lower", "local.lr=0.03")
    for seed in (0, 1):
        fresh = ("local.lr=0.03", "rounds=6", f"seed={seed}", "checkpoint.keep=9")
        assert hpcfl("run", job, *fresh, "--out", tmp_path / f"fresh{seed}").code == 0
    other = tmp_path / "other"
    assert hpcfl("run", job, "rounds=6", "seed=1", "checkpoint.keep=9", "--out", other).code == 0
    second, _ = branch("second", "local.lr=0.03", of=other)
    dirs = [lower, second, tmp_path / "fresh0", tmp_path / "fresh1"]
    runs = [read_run(path) for path in dirs]
    assert group_by_seed([found.settings for found in runs]) == [[0, 1], [2, 3]]
    done = hpcfl("report", *dirs, "--layout", "seeds", "--target-accuracy", 0.1,
                 "--plot", tmp_path / "plot.svg")  # fmt: skip
    assert done.code == 0, done.err
    course = "at round 2: local.lr 0.1 -> 0.03"
    assert sum("| fedhbm" in line for line in done.out) == 2
    line = f"lower: branch of {run} {course}; its rounds, bytes and times count from round 0"
    assert any(found.startswith(line) for found in done.out)


def test_a_sweep_takes_no_branch_for_its_run(job, branch, tmp_path, refused):
    """Though its job is that of the point."""
    branch("sweep/lr0.03", "local.lr=0.03")
    sweep = tmp_path / "sweep.yaml"
    settings = "{rounds: 6, checkpoint.keep: 9}"
    sweep.write_text(f"job: {job}\nset: {settings}\ngrid: {{local.lr: [0.03]}}\n")
    line = refused("sweep", sweep, "--out", tmp_path / "sweep", "--dry-run")
    assert f"{tmp_path / 'sweep' / 'lr0.03'}: holds no run of the sweep, but a branch of " in line


def test_what_precedes_round_1_stays(job, tmp_path, hpcfl, refused):
    """A first server of another value: it is the parent's that the branch begins with."""
    run, adam = tmp_path / "adam", "algorithm={name: fedadam}"
    assert hpcfl("run", job, adam, "rounds=2", "--out", run).code == 0
    line = refused("resume", run, "algorithm.v0=0.5", "--round", "0", "--out", tmp_path / "copy")
    assert line == (
        "JobError: algorithm: fedadam cannot branch with v0 0.0 -> 0.5: it begins with the "
        "parent's server, which had the other value; start a new run with them"
    )
    changes = ("algorithm.b1=0.5", "--round", "0", "--out", tmp_path / "copy")
    assert hpcfl("resume", run, *changes).code == 0
