"""Runs that end before their last round, by a score or by a callback."""

import json
import shutil
import sys

import pytest
import yaml

import hpcfl as api
from hpcfl.evaluation.config import Stop
from hpcfl.evaluation.stopping import StopRule
from hpcfl.runs.manifest import committed
from tests.forked import finish
from tests.parallel.outcome import outcome
from tests.rundirs import starts

CALLBACK = """\
import hpcfl


class EndsAt(hpcfl.Callback):
    def __init__(self, last):
        self.last = last

    def round(self, record, model):
        return record["round"] >= self.last

    def end(self, status):
        print("told", status)
"""
QUICK = ("rounds=30", "evaluate.every=1", "checkpoint.every=7")


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch, own_process):
    (tmp_path / "ending.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ending", raising=False)
    yield tmp_path
    sys.modules.pop("ending", None)


@pytest.fixture
def whole(job, tmp_path, hpcfl):
    """A run of all 30 rounds."""
    out = tmp_path / "whole"
    assert hpcfl("run", job, *QUICK, "--out", out).code == 0
    return out


def log(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def losses(run):
    return [line["test_loss"] for line in log(run)]


def first_below(run, target):
    return next(line["round"] for line in log(run) if line["test_loss"] <= target)


def target(whole):
    """The loss after round 11, to which none before comes near; and its setting."""
    loss = losses(whole)[11]
    assert first_below(whole, loss) == 11
    return f"stop={{metric: test_loss, target: {loss!r}}}"


def test_a_target_ends_the_run(job, whole, tmp_path, hpcfl):
    """With the bits of a run of so many rounds; the last checkpoint is of the last round."""
    run, shorter = tmp_path / "run", tmp_path / "shorter"
    done = hpcfl("run", job, *QUICK, target(whole), "--out", run)
    assert done.code == 0
    reason = f"test_loss is {losses(whole)[11]:.4g} after round 11, target "
    assert f"{run}: finished early at round 11: {reason}" in done.err[-1]
    assert committed(run / "checkpoints")[-1].round == 11
    assert hpcfl("run", job, *QUICK, "rounds=11", "--out", shorter).code == 0
    assert outcome(run) == outcome(shorter)
    assert starts(run)[-1]["outcome"]["ending"] == "finished early"
    assert api.load_model(run)


def test_it_is_shown(job, whole, tmp_path, hpcfl):
    run, record = tmp_path / "run", tmp_path / "record"
    assert hpcfl("run", job, *QUICK, target(whole), "--out", run).code == 0
    lines = hpcfl("status", run).out
    assert lines[0].endswith(": fedhbm, finished early")
    assert lines[1].split(maxsplit=1)[1].startswith("test_loss is ")
    assert any(line.split() == ["rounds", "11", "of", "30"] for line in lines)
    assert "resume" not in {line.split()[0] for line in lines}
    assert "11/30 finished early" in hpcfl("report", run).text
    assert hpcfl("export", run, "--record", record).code == 0
    assert "11/30 finished early" in hpcfl("report", record).text


def test_a_resume_does_nothing_until_the_settings_change(job, whole, tmp_path, hpcfl):
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert hpcfl("run", job, *QUICK, target(whole), "--out", run).code == 0
    before = (run / "log.jsonl").read_bytes()
    for arguments in (("resume", run), ("resume", run, "--out", copy), ("resume", copy)):
        done = hpcfl(*arguments)
        assert done.code == 0
        assert "finished early at round 11: " in done.err[-1]
        folder = copy if copy in arguments else run
        assert done.err[-1].endswith(
            "; nothing to do unless stop or callbacks change: "
            f"`hpcfl resume {folder} stop=null` makes the other rounds"
        )
    assert (run / "log.jsonl").read_bytes() == before
    assert starts(run)[-1]["outcome"]["ending"] == "finished early"
    # A changed target: it goes on, and ends again; without one it does all its rounds.
    loss = losses(whole)[17]
    assert hpcfl("resume", run, f"stop.target={loss!r}").code == 0
    assert log(run)[-1]["round"] == first_below(whole, loss) > 11
    assert hpcfl("resume", run, "stop=null").code == 0
    assert "stop: null" in (run / "job.yaml").read_text()
    assert outcome(run) == outcome(whole)
    assert starts(run)[-1]["outcome"]["ending"] == "finished"
    assert any(
        "finished early at round 11: " in line for line in hpcfl("resume", copy, "rounds=40").err
    )


def test_as_after_a_kill(job, whole, tmp_path, hpcfl):
    """Before the last checkpoint was committed: the rounds are run again, and end the run again."""
    run = tmp_path / "run"
    assert hpcfl("run", job, *QUICK, target(whole), "--out", run).code == 0
    before = outcome(run)
    shutil.rmtree(run / "checkpoints/00000011")
    done = hpcfl("resume", run)
    assert "finished early at round 11: " in done.err[-1]
    assert outcome(run) == before


@pytest.mark.parametrize("rounds", [3, 6])
def test_patience_is_counted_over_a_resume(job, tmp_path, hpcfl, rounds):
    """The rate is so high that the initial model is the best; 6 rounds are its patience."""
    run, stopped = tmp_path / "run", tmp_path / "stopped"
    settings = (job, *QUICK, "local.lr=20", "stop={metric: test_loss, patience: 6}")
    assert hpcfl("run", *settings, "--out", run).code == 0
    found = losses(run)
    best, last = found.index(min(found)), len(found) - 1
    assert 6 <= last < 30
    assert last - best == 6
    assert hpcfl("run", *settings, f"rounds={rounds}", "--out", stopped).code == 0
    assert hpcfl("resume", stopped, "rounds=30").code == 0
    assert outcome(stopped) == outcome(run)
    assert starts(stopped)[-1]["outcome"]["ending"] == "finished early"


def test_several_ranks_end_after_the_same_round(job, whole, tmp_path, hpcfl, module):
    one, two, asked = tmp_path / "one", tmp_path / "two", tmp_path / "asked"
    assert hpcfl("run", job, *QUICK, target(whole), "--out", one).code == 0
    env = {"PYTHONPATH": str(module)}
    done = finish(2, "run", job, *QUICK, target(whole), "--out", two, env=env)
    assert done.returncode == 0, done.stderr
    assert outcome(two) == outcome(one)
    callback = "callbacks=[{name: ending.EndsAt, last: 11}]"
    done = finish(2, "run", job, *QUICK, callback, "--out", asked, env=env)
    assert done.returncode == 0, done.stderr
    assert outcome(asked) == outcome(one)


def test_a_callback_ends_the_run(job, tmp_path, hpcfl):
    run, callback = tmp_path / "run", "callbacks=[{name: ending.EndsAt, last: 5}]"
    done = hpcfl("run", job, *QUICK, callback, "--out", run)
    assert (done.code, done.out) == (0, ["told finished"])
    reason = "ending.EndsAt asked for it after round 5"
    assert f"finished early at round 5: {reason}" in done.err[-1]
    assert committed(run / "checkpoints")[-1].round == 5
    done = hpcfl("resume", run)
    assert f"finished early at round 5: {reason}; nothing to do" in done.err[-1]
    branch = tmp_path / "branch"  # it goes on, until the callback ends it, too
    assert hpcfl("resume", run, "local.lr=0.05", "--round", "5", "--out", branch).code == 0
    assert log(branch)[-1]["round"] == 6
    assert hpcfl("resume", run, "callbacks=[]").code == 0
    assert log(run)[-1]["round"] == 30


def test_objects_from_python(job, tmp_path):
    class Ends(api.Callback):
        def round(self, record, model):
            return record["round"] == 3

    result = api.run(job, list(QUICK), out=tmp_path / "run", callbacks=[Ends()])
    assert result.rounds == len(result.log) - 1 == 3
    again = api.run(job, list(QUICK), out=tmp_path / "run", continued=True)
    assert again.rounds == 3
    assert (again.x == result.x).all()


def test_what_a_callback_returns_else_is_not_used(job, tmp_path):
    class Returns(api.Callback):
        def round(self, record, model):
            return 1

    assert api.run(job, out=tmp_path / "run", callbacks=[Returns()]).rounds == 4


def test_a_sweep_counts_it_as_done(job, whole, tmp_path, hpcfl):
    sweep, root = tmp_path / "s.yaml", tmp_path / "out"
    sweep.write_text(
        f"job: job.yaml\nset: {{rounds: 30, evaluate.every: 1, "
        f"{target(whole).replace('=', ': ', 1)}}}\ngrid:\n  seed: [0, 1]\n"
    )
    assert hpcfl("sweep", sweep, "--out", root).code == 0
    assert log(root / "seed0")[-1]["round"] == 11
    assert hpcfl("sweep", sweep, "--out", root, "--dry-run").out[-1] == "2 runs, 2 of them finished"
    changed = hpcfl("sweep", sweep, "stop.target=0.0", "--out", root, "--dry-run")
    assert changed.out[-1] == "2 runs, 0 of them finished"
    shutil.rmtree(root / "seed0/checkpoints")  # to save space
    assert hpcfl("sweep", sweep, "--out", root, "--dry-run").out[-1] == "2 runs, 2 of them finished"


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("{metric: test_accuracy, target: 60}", "is a fraction of 0 to 1; say 0.6 for 60 %"),
        ("{metric: test_loss}", "target: missing; give target, patience or both"),
        ("{metric: test_los, patience: 2}", "expected a score that the job computes: test_loss, "),
        ("{metric: test_los, patience: 2}", "did you mean test_loss?"),
        ("{metric: client_accuracy_mean, patience: 2}", "found client_accuracy_mean, expected a"),
        ("{metric: test_loss, patience: 2, better: higher}", "but test_loss is better lower"),
        ("{metric: test_margin, patience: 2}", "stop.better: missing; hpcfl does not know whether"),
    ],
)
def test_what_no_evaluation_would_decide(job, refused, tmp_path, stop, said):
    (tmp_path / "ending.py").write_text("def margin(outputs, labels):\n    return outputs[:, 0]\n")
    own = "evaluate.metrics=[ending.margin]"
    line = refused("run", job, own, f"stop={stop}", "--out", tmp_path / "run")
    assert said in line
    assert not (tmp_path / "run").exists()


def test_only_the_last_round_is_evaluated(job, refused, tmp_path):
    stop = "stop={metric: test_loss, patience: 2}"
    line = refused("run", job, "evaluate.every=null", stop, "--out", tmp_path / "run")
    assert "stop: evaluate.every is absent, so only the last round is evaluated" in line


LOCAL = ("algorithm={name: fedper, personal: all}", "data.holdout=0.25")


def test_a_run_stops_by_default_by_the_score_that_it_counts_by(job, tmp_path, hpcfl):
    """That of x never changes with local training alone: patience would end it after round 2."""
    run, words = tmp_path / "run", ("rounds=9", "evaluate.every=1", "local.lr=0.003")
    stop = "stop={patience: 2}"
    assert hpcfl("run", "quickstart", *words, *LOCAL, stop, "--out", run).code == 0
    lines = log(run)
    assert len({line["test_loss"] for line in lines}) == 1
    assert lines[-1]["round"] > 2
    kept = yaml.safe_load((run / "job.yaml").read_text())["stop"]
    assert kept["metric"] == "personal_accuracy"
    validated = ("data.validation.share=0.25", "rounds=1")
    for more, metric in ((LOCAL, "personal_validation_accuracy"), ((), "validation_accuracy")):
        out = tmp_path / metric
        words = ("evaluate.every=1", *validated, *more, stop)
        assert hpcfl("run", job, *words, "--out", out).code == 0
        assert yaml.safe_load((out / "job.yaml").read_text())["stop"]["metric"] == metric


def test_a_score_of_an_x_that_is_not_trained_ends_no_run(job, refused, tmp_path):
    words = ("evaluate.every=1", *LOCAL, "--out", tmp_path / "run")
    line = refused("run", job, "stop={metric: test_loss, patience: 2}", *words)
    assert "stop.metric: found test_loss, of x, which is not trained; expected a score of" in line
    line = refused("run", job, "stop={patience: 2}", "evaluate.personal=false", *words)
    assert "stop.metric: the default, test_accuracy, is of x, which is not trained; expe" in line
    line = refused("run", job, "stop={better: higher, patience: 2}", *words)
    assert "better: found higher without a metric" in line


def ends(config, values):
    """After which of the evaluations of test_accuracy a run ends; None: after none."""
    rule = StopRule(Stop(metric="test_accuracy", **config))
    for number, value in enumerate(values):
        rule.offer(number, {"test_accuracy": value})
        if rule.reason:
            return number
    return None


def test_the_rule():
    nan = float("nan")
    assert ends({"target": 0.7}, [0.6, 0.7]) == 1
    assert ends({"target": 0.7}, [nan, 0.69]) is None
    assert ends({"patience": 2}, [0.5, 0.6, 0.6, 0.4]) == 3  # an equal score is no better one
    assert ends({"patience": 2}, [0.5, 0.4, 0.6, 0.4]) is None
    assert ends({"patience": 2}, [nan, nan, 0.6]) == 1
    assert ends({"patience": 2}, [0.5, nan, nan]) == 2
    assert ends({"patience": 9, "target": 0.5}, [0.5]) == 0
    lower = StopRule(Stop(metric="test_loss", target=0.1))
    lower.offer(1, {"test_loss": 0.2})
    assert not lower.reason
    lower.offer(2, {})
    lower.offer(3, {"test_loss": 0.1})
    assert lower.reason == "test_loss is 0.1 after round 3, target 0.1"
