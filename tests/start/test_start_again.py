"""`hpcfl run --continue`: one command begins a run, takes it up again, and finds it finished."""

import shutil

import numpy as np
import pytest
import yaml

import hpcfl
from hpcfl.local.block import block_executor
from hpcfl.runs.layout import RunDir
from hpcfl.start import prepare
from hpcfl.start.components import choose_executor
from hpcfl.start.components import executors as makers
from tests.parallel.outcome import outcome
from tests.rundirs import starts, text

pytestmark = pytest.mark.slow


@pytest.fixture
def go(job, tmp_path, hpcfl):
    """The command, with more words."""
    return lambda *more: hpcfl("run", job, "--out", tmp_path / "run", "--continue", *more)


@pytest.fixture
def whole(job, tmp_path, hpcfl):
    """The outcome of the run without a break."""
    assert hpcfl("run", job, "--out", tmp_path / "whole").code == 0
    return outcome(tmp_path / "whole")


def unfinish(run):
    """As a kill after round 2 leaves it."""
    shutil.rmtree(run / "checkpoints/00000004")


def test_begins_goes_on_and_finds_it_finished(go, whole, tmp_path):
    run = tmp_path / "run"
    assert go().code == 0
    assert outcome(run) == whole
    unfinish(run)
    assert go().code == 0
    assert outcome(run) == whole
    before = text(run / "checkpoints")
    done = go()
    assert (done.code, done.err[-1]) == (0, f"{run}: finished, nothing to do")
    assert text(run / "checkpoints") == before
    assert [start["round"] for start in starts(run)] == [0, 2, 4]


def test_a_start_that_died_before_its_first_checkpoint_is_begun_anew(go, whole, tmp_path):
    run = tmp_path / "run"
    assert go().code == 0
    shutil.rmtree(run / "checkpoints")
    (run / "log.jsonl").unlink()
    (run / "checkpoints/00000000").mkdir(parents=True)  # never committed
    assert go().code == 0
    assert outcome(run) == whole
    assert [start["round"] for start in starts(run)] == [0, 0]


def test_of_another_job_is_refused(go, job, tmp_path, refused):
    run = tmp_path / "run"
    assert go().code == 0
    before = text(run)
    again = ("run", job, "--out", run, "--continue")
    assert refused(*again, "local.lr=0.2") == (
        f"JobError: {run}: holds a run of another job: local.lr is 0.1 there, 0.2 here; "
        "choose another directory with --out"
    )
    line = refused("run", job, "--out", run, "checkpoint.keep=7")
    assert f"(a resume may change it: `hpcfl resume {run} checkpoint.keep=...`)" in line
    line = refused(*again, "algorithm={name: fedavg}")
    assert "algorithm.name is fedhbm there, fedavg here" in line
    assert "4 are done" in refused(*again, "rounds=3")
    (run / "job.yaml").rename(tmp_path / "kept")
    assert "holds no run (no job.yaml)" in refused(*again)
    (tmp_path / "kept").rename(run / "job.yaml")
    assert text(run) == before


def test_of_another_job_without_a_checkpoint_is_refused(go, job, tmp_path, refused):
    run = tmp_path / "run"
    assert go().code == 0
    shutil.rmtree(run / "checkpoints")
    for change in ("seed=1", "checkpoint.keep=7"):  # no resume can change anything there
        line = refused("run", job, "--out", run, "--continue", change)
        assert "holds a run of another job" in line
        assert "hpcfl resume" not in line


def forget_rounds(run):
    """As a start leaves it that ended before its first checkpoint."""
    shutil.rmtree(run / "checkpoints")
    (run / "log.jsonl").unlink()


def test_free_keys_may_be_changed_before_the_first_checkpoint(go, whole, tmp_path, refused, job):
    """After a start that was refused because the disk is too small, say."""
    run = tmp_path / "run"
    assert go("checkpoint.keep=3").code == 0
    forget_rounds(run)
    for settings in (("local.lr=0.2",), ("rounds=6", "local.lr=0.2", "checkpoint.keep=2")):
        line = refused("run", job, "--out", run, "--continue", *settings)
        assert "holds a run of another job: local.lr is 0.1 there, 0.2 here" in line
    assert go().code == 0
    assert outcome(run) == whole


@pytest.mark.parametrize("begun", ["before the first checkpoint", "after it"])
def test_a_run_keeps_the_executor_it_began_with(go, job, tmp_path, monkeypatch, refused, begun):
    """On a device of another kind the rule gives another one."""
    run, words = tmp_path / "run", ("executor=auto", "cohort.size=3")
    for executors in (("block",), ()):
        monkeypatch.setattr(
            choose_executor, "rule", lambda *_, found=executors, **__: (found, "a reason")
        )
        done = go(*words)
        assert done.code == 0, done.err
        assert yaml.safe_load((run / "job.yaml").read_text())["executor"] == "block"
        forget_rounds(run) if begun == "before the first checkpoint" else unfinish(run)
    line = refused("run", job, "--out", run, "--continue", *words, "block_size=2")
    assert "block_size is null there, 2 here" in line


@pytest.fixture
def sizes(monkeypatch):
    """How many clients the blocks have that are made, but those of two that are tried."""
    found = []

    def noted(*args, size, **how):
        found.extend([size] * (size > 2))
        return block_executor(*args, size=size, **how)

    monkeypatch.setattr(makers, "block_executor", noted)
    return found


OF_33 = (
    "data={kind: quadratics, clients: 33, dim: 2}",
    "model={name: point}",
    "algorithm={name: fedavg}",
    "cohort={kind: uniform, size: 33}",
)


@pytest.mark.parametrize("asked", ["executor=block", "executor=auto"])
def test_a_run_keeps_its_equal_blocks(go, tmp_path, sizes, hpcfl, asked, monkeypatch):
    run, words = tmp_path / "run", (*OF_33, asked)
    monkeypatch.setattr(choose_executor, "rule", lambda *_, **__: (("block",), "a reason"))
    done = go(*words)
    assert done.code == 0
    assert "block_size: 17 (a cohort of 33 in equal blocks)" in "".join([*done.out, *done.err])
    assert yaml.safe_load((run / "job.yaml").read_text())["block_size"] == 17
    forget_rounds(run)
    assert go(*words).code == 0
    unfinish(run)
    assert go(*words).code == 0
    unfinish(run)
    assert hpcfl("resume", run).code == 0
    assert sizes == 4 * [17]


def test_a_run_that_an_earlier_version_began_keeps_blocks_of_32(
    go, tmp_path, sizes, hpcfl, monkeypatch
):
    run, words = tmp_path / "run", (*OF_33, "executor=block")
    with monkeypatch.context() as earlier:
        earlier.setattr(choose_executor, "with_equal_blocks", lambda components: (components, []))
        assert go(*words).code == 0
    assert yaml.safe_load((run / "job.yaml").read_text())["block_size"] is None
    forget_rounds(run)
    assert go(*words).code == 0
    unfinish(run)
    assert go(*words).code == 0
    unfinish(run)
    assert hpcfl("resume", run, "--out", tmp_path / "copy").code == 0
    assert hpcfl("resume", run).code == 0
    assert sizes == 5 * [32]
    branch = ("local.lr=0.2", "--round", "2", "--out", tmp_path / "branch")
    assert hpcfl("resume", run, *branch).code == 0
    assert sizes[5:] == [17]


def test_a_block_size_that_no_start_settles_is_of_another_job(go, tmp_path, refused, job):
    run = tmp_path / "run"
    assert go("executor=block", "block_size=2", "cohort.size=3").code == 0
    line = refused("run", job, "--out", run, "--continue", "executor=block", "cohort.size=3")
    assert "block_size is 2 there, null here" in line
    line = refused("resume", run, "block_size=null")
    assert f"block_size: is 2 in {run}, asked for is null, which would change past rounds" in line


def test_a_resume_takes_what_a_start_again_takes(go, tmp_path, hpcfl, refused, monkeypatch):
    run, words = tmp_path / "run", (*OF_33, "executor=auto")
    monkeypatch.setattr(choose_executor, "rule", lambda *_, **__: (("block",), "a reason"))
    assert go(*words).code == 0
    for open_keys in (("executor=auto",), ("block_size=null",), ("executor=auto", "block_size=17")):
        unfinish(run)
        done = hpcfl("resume", run, *open_keys)
        assert done.code == 0, done.err
        job = yaml.safe_load((run / "job.yaml").read_text())
        assert (job["executor"], job["block_size"]) == ("block", 17)
    unfinish(run)
    line = refused("resume", run, "block_size=2")
    assert f"block_size: is 17 in {run} (chosen at its start), asked for is 2, which " in line
    done = go(*words, "block_size=2")
    assert "block_size is 17 there (chosen at its start), 2 here" in done.err[-1]


def test_a_branch_says_that_its_blocks_are_those_of_other_cohorts(go, tmp_path, hpcfl):
    run, line = tmp_path / "run", "block_size is 17 as before; the default for these cohorts: "
    assert go(*OF_33, "executor=block").code == 0
    unfinish(run)

    def branch(name, *settings):
        done = hpcfl("resume", run, *settings, "--out", tmp_path / name)
        assert done.code == 0, done.err
        return [found for found in done.err if found.startswith("block_size")]

    smaller = "cohort.size=20"
    assert branch("smaller", smaller) == [f"{line}null (block_size=null takes it)"]
    assert branch("anew", smaller, "block_size=null") == []
    assert branch("same", "local.lr=0.2") == []


def test_free_keys_may_be_changed(go, job, tmp_path, hpcfl):
    run = tmp_path / "run"
    assert go().code == 0
    done = go("rounds=6")
    assert done.code == 0, done.err
    assert "rounds was 4, is 6 after round 4" in done.err
    assert yaml.safe_load((run / "job.yaml").read_text())["rounds"] == 6
    assert hpcfl("run", job, "rounds=6", "--out", tmp_path / "six").code == 0
    found, expected = outcome(run), outcome(tmp_path / "six")
    assert (found.server, found.clients) == (expected.server, expected.clients)


def test_a_default_that_the_data_settles_is_the_same_job(job, tmp_path, hpcfl):
    """ghb's tau is that of the participation, which arrays tell when they are loaded."""
    words = ("algorithm={name: ghb}", "data.clients=null", "data.partition={kind: natural}")
    run = ("run", job, *words, "--out", tmp_path / "run", "--continue")
    owned = "data.path=" + str(tmp_path / "owned.npz")
    given = dict(np.load(tmp_path / "data.npz"))
    np.savez(tmp_path / "owned.npz", **given, client=np.arange(40) % 4)
    assert hpcfl(*run, owned).code == 0
    settled = yaml.safe_load((tmp_path / "run/job.yaml").read_text())["algorithm"]["tau"]
    assert settled == 2
    unfinish(tmp_path / "run")
    done = hpcfl(*run, owned)
    assert done.code == 0, done.err


def test_a_live_run_is_refused(go, job, tmp_path, refused):
    assert go().code == 0
    again = ("run", job, "--out", tmp_path / "run", "--continue")
    for _ in ("with a checkpoint", "without one"):
        with RunDir(tmp_path / "run") as held:
            held.lock()
            assert "a run is alive in this directory" in refused(*again, code=75)
        shutil.rmtree(tmp_path / "run/checkpoints", ignore_errors=True)


def test_a_start_that_another_has_overtaken_is_to_be_given_again(go, monkeypatch):
    """The other one has run and ended while this one loaded its data."""
    assert go().code == 0
    with monkeypatch.context() as patched:
        patched.setattr(prepare, "_has_checkpoint", lambda _: False)
        done = go()
    assert done.code == 75
    assert "holds a run of this job already" in done.err[-1]
    assert go().code == 0


def test_from_python(job, tmp_path):
    for _ in range(2):
        result = hpcfl.run(job, out=tmp_path / "run", continued=True)
    assert result.rounds == 4
    assert [start["round"] for start in starts(tmp_path / "run")] == [0, 4]


def test_where_a_run_goes_is_told_without_a_look_at_the_job(hpcfl, job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hpcfl("check", job, "--where").out == ["runs/job"]
    (there,) = hpcfl("check", job, "rounds=2", "seed=3", "--where").out
    assert hpcfl("check", job, "seed=3", "rounds=2", "--where").out == [there]
    assert hpcfl("run", job, "rounds=2", "seed=3").code == 0
    assert (tmp_path / there / "job.yaml").is_file()


def test_a_directory_in_a_run_or_around_runs_is_refused(job, tmp_path, hpcfl, refused):
    """A report would take the one run for a part of the other."""
    runs = tmp_path / "runs"
    assert hpcfl("run", job, "--out", runs / "one").code == 0
    before = text(runs)
    for name in ("one/two", "one/a/b"):
        copy = ("resume", runs / "one", "rounds=6", "--out", runs / name)
        line = refused("run", job, "--out", runs / name)
        assert refused(*copy) == line
        assert refused("export", runs / "one", "--record", runs / name) == line
        assert line == (
            f"JobError: {runs / name}: lies in the directory of a run, {runs / 'one'}; choose "
            "another place"
        )
    assert refused("run", job, "--out", runs) == (
        f"JobError: {runs}: holds other runs, such as one; choose a directory for this run alone, "
        f"--out {runs}/NAME"
    )
    assert text(runs) == before
    assert hpcfl("run", job, "--out", runs / "two").code == 0


def test_a_folder_with_a_job_and_checkpoints_of_ones_own_is_no_run(
    job, tmp_path, hpcfl, monkeypatch
):
    (tmp_path / "checkpoints").mkdir()  # beside job.yaml
    assert hpcfl("run", job, "--out", tmp_path / "runs/one").code == 0
    monkeypatch.chdir(tmp_path / "runs/one")
    assert hpcfl("run", job, "--out", "../two").code == 0


def test_cohorts_that_are_all_empty_are_refused(job, tmp_path, refused):
    run = tmp_path / "run"
    line = refused("run", job, "cohort={kind: bernoulli, p: 1.0e-9}", "--out", run)
    assert line.endswith("cohort: none of the rounds has a client; raise cohort.p, or rounds")
    assert not run.exists()


def test_auto_may_have_a_block_size_that_its_choice_does_not_need(go, tmp_path, monkeypatch):
    """The same command goes on."""
    monkeypatch.setattr(choose_executor, "rule", lambda *_, **__: ((), "a reason"))
    words = ("executor=auto", "block_size=2")
    assert go(*words).code == 0
    unfinish(tmp_path / "run")
    done = go(*words)
    assert done.code == 0, done.err
    forget_rounds(tmp_path / "run")
    assert go(*words).code == 0


def test_it_says_that_other_settings_begin_another_run(job, tmp_path, hpcfl, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(*words):
        done = hpcfl("run", job, *words, "--continue")
        assert done.code == 0, done.err
        return [line for line in done.err if "begins a new run" in line]

    assert said("rounds=2") == []
    (line,) = said("rounds=3")
    assert line.startswith(f"runs/{job.stem}-rounds3: begins a new run, as the settings of the ")
    assert line.endswith(f"; to go on with one of runs/{job.stem}-rounds2: --out")
    assert said("rounds=3") == []
    assert said("rounds=4", "--out", "here") == []
