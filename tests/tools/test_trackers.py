"""What a tracker gets of a run: every round once, whatever is resumed, and whatever fails."""

import json
import sys
import threading
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from hpcfl.engine.callbacks import RunStart
from hpcfl.tools.callbacks import tracker
from tests.forked import finish


class Service:
    """The runs that a tracker has: {id: {"name", "config", "points", "ends"}}."""

    def __init__(self):
        self.runs, self.tags, self.fail = {}, {}, lambda where: None

    def begin(self, id, name, config):
        self.fail("start")
        run = self.runs.setdefault(id, {"name": name, "config": {}, "points": [], "ends": []})
        run["config"] |= config
        return run

    def point(self, id, step, key):
        self.fail("scores")
        self.runs[id]["points"].append((step, key))

    def steps(self, id):
        return [step for step, key in self.runs[id]["points"] if key == "score/train_loss"]


class Logger:
    """A run of wandb."""

    def __init__(self, service, id):
        self.service, self.id = service, id

    def log(self, values, step):
        for key in values:
            self.service.point(self.id, step, key)

    def finish(self, exit_code=0):
        self.service.runs[self.id]["ends"].append("FAILED" if exit_code else "FINISHED")


def wandb(service):
    def init(*, project, name, id, resume, config, allow_val_change, dir, mode, settings):
        assert (project, resume, mode, settings["console"]) == ("hpcfl", "allow", "offline", "off")
        service.begin(id, name, config)
        return Logger(service, id)

    return {"wandb": {"init": init, "Settings": dict}}


class MlflowClient:
    def __init__(self, service, tracking_uri):
        assert tracking_uri.endswith("/mlruns")
        self.service = service

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "1"

    def create_run(self, experiment, run_name):
        id = f"run{len(self.service.runs)}"
        self.service.begin(id, run_name, {})
        return SimpleNamespace(info=SimpleNamespace(run_id=id))

    def get_run(self, id):
        return SimpleNamespace(data=SimpleNamespace(params=self.service.runs[id]["config"]))

    def update_run(self, id, status):
        assert status == "RUNNING"

    def log_batch(self, id, metrics=(), params=(), tags=()):
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.service.runs[id]["config"] |= dict(params)
        self.service.tags |= dict(tags)
        for key, _, _, step in metrics:
            self.service.point(id, step, key)

    def set_terminated(self, id, status):
        self.service.runs[id]["ends"].append(status)


def mlflow(service):
    def entity(*values):
        return values

    return {
        "mlflow": {"MlflowClient": partial(MlflowClient, service)},
        "mlflow.entities": {"Metric": entity, "Param": entity, "RunTag": entity},
        "mlflow.exceptions": {"MlflowException": RuntimeError},
    }


@pytest.fixture
def install(monkeypatch):
    """Install a package that stands in for a tracker's; what it was given."""
    for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)

    def put(package):
        service = Service()
        for name, content in package(service).items():
            module = ModuleType(name)
            vars(module).update(content, __spec__=ModuleSpec(name, None))
            monkeypatch.setitem(sys.modules, name, module)
        return service

    return put


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.mark.parametrize("package", [wandb, mlflow], ids=lambda p: p.__name__)
def test_every_round_once(job, hpcfl, run, install, package):
    service, name = install(package), package.__name__
    done = hpcfl("run", job, f"callbacks=[{name}]", "rounds=3", "checkpoint.every=1", "--out", run)
    assert done.code == 0
    assert any(f"calls {name}" in line for line in done.err)
    assert not done.out
    ((id, tracked),) = service.runs.items()
    assert service.steps(id) == [1, 2, 3]
    assert tracked["name"] == "run"
    assert {key: str(tracked["config"][key]) for key in ("local.lr", "ranks", "directory")} == {
        "local.lr": "0.1",
        "ranks": "1",
        "directory": str(run),
    }
    assert "git" in tracked["config"]
    assert hpcfl("resume", run, "--round", "2", "rounds=5").code == 0
    assert list(service.runs) == [id]
    assert service.steps(id) == [1, 2, 3, 4, 5]
    assert len(set(tracked["points"])) == len(tracked["points"])
    assert (4, "score/test_accuracy") in tracked["points"]
    assert tracked["ends"] == ["FINISHED", "FINISHED"]
    if package is mlflow:  # whose parameters stay as they were
        assert (tracked["config"]["rounds"], service.tags["rounds"]) == ("3", "5")
    assert json.loads((run / f"{name}.json").read_text())["id"] == id


def test_a_section_names_project_and_run(job, hpcfl, run, install):
    service = install(mlflow)
    section = "callbacks=[{name: mlflow, project: thesis, run: first}]"
    assert hpcfl("run", job, section, "--out", run).code == 0
    assert [tracked["name"] for tracked in service.runs.values()] == ["first"]
    assert json.loads((run / "mlflow.json").read_text())["project"] == "thesis"


def test_a_copy_and_a_branch_are_other_runs(job, hpcfl, run, install, tmp_path):
    """They begin with the rounds that they share with the original."""
    service = install(wandb)
    settings = ("callbacks=[wandb]", "checkpoint.every=1", "checkpoint.keep=9", "--out", run)
    assert hpcfl("run", job, *settings).code == 0
    assert hpcfl("resume", run, "--round", "2", "--out", tmp_path / "copy").code == 0
    branch = ("resume", run, "local.lr=0.05", "--round", "2", "--out", tmp_path / "branch")
    assert hpcfl(*branch).code == 0
    assert [tracked["name"] for tracked in service.runs.values()] == ["run", "copy", "branch"]
    assert [service.steps(id) for id in service.runs] == [[1, 2, 3, 4]] * 3


def test_a_finished_run_can_be_sent(job, hpcfl, run, install):
    service = install(mlflow)
    assert hpcfl("run", job, "--out", run).code == 0
    assert not service.runs
    assert hpcfl("resume", run, "callbacks=[mlflow]").code == 0
    assert [service.steps(id) for id in service.runs] == [[1, 2, 3, 4]]


@pytest.mark.parametrize("where", ["start", "scores"])
def test_a_failure_is_one_line_and_the_next_start_sends_the_rest(
    job, hpcfl, run, install, monkeypatch, where
):
    service = install(mlflow)

    def fail(point):
        if point == where:
            raise ConnectionError("no route\nto host")

    monkeypatch.setattr(service, "fail", fail)
    done = hpcfl("run", job, "callbacks=[mlflow]", "--out", run)
    assert done.code == 0
    (line,) = [line for line in done.err if "warning" in line]
    assert "callbacks: mlflow: ConnectionError: no route to host; the run continues" in line
    log = (run / "log.jsonl").read_bytes()
    monkeypatch.setattr(service, "fail", lambda point: None)
    done = hpcfl("resume", run)
    assert done.code == 0
    assert not [line for line in done.err if "warning" in line]
    (id,) = service.runs
    assert service.steps(id) == [1, 2, 3, 4]
    assert (run / "log.jsonl").read_bytes() == log


def test_a_tracker_that_hangs(job, hpcfl, run, install, monkeypatch):
    service, answered = install(wandb), threading.Event()
    monkeypatch.setattr(service, "fail", lambda point: answered.wait())
    monkeypatch.setattr(tracker, "FINISH_S", 0.01)
    done = hpcfl("run", job, "callbacks=[wandb]", "--out", run)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "tracker"]
    answered.set()
    thread.join()
    assert done.code == 0
    (line,) = [line for line in done.err if "warning" in line]
    assert "callbacks: wandb: it has not taken all within 0.01 s" in line


def test_a_tracker_that_does_not_answer_is_left(tmp_path, capsys, monkeypatch):
    """The rounds that wait for it do not fill the memory."""
    answered = threading.Event()
    monkeypatch.setattr(tracker, "_WAITING", 9)
    for name in ("log.jsonl", "history.jsonl"):
        (tmp_path / name).touch()

    class Stuck(tracker.Tracker):
        name = "stuck"

        def begin(self, run, config, name, known):
            answered.wait()
            return "id"

        def deliver(self, rows):
            pass

        def finish(self, status):
            pass

    stuck = Stuck()
    stuck.start(RunStart(tmp_path, {}, 0, 100, 1))
    for round in range(100):
        stuck.round({"round": round})
    assert not stuck._rows
    stuck.end("finished")
    answered.set()
    stuck._thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert "stuck: it does not answer; the run continues without it" in line


@pytest.mark.parametrize("content", ["{", "[]", '{"id": 3}'])
def test_a_file_that_is_not_the_trackers_stays(job, hpcfl, run, install, content):
    service = install(wandb)
    assert hpcfl("run", job, "callbacks=[wandb]", "--out", run).code == 0
    (run / "wandb.json").write_text(content)
    done = hpcfl("resume", run)
    (line,) = [line for line in done.err if "warning" in line]
    assert "wandb.json" in line
    assert "move it elsewhere; the run continues without it" in line
    assert (run / "wandb.json").read_text() == content
    assert [service.steps(id) for id in service.runs] == [[1, 2, 3, 4]]
    (run / "wandb.json").unlink()
    assert hpcfl("resume", run).code == 0
    assert [service.steps(id) for id in service.runs] == [[1, 2, 3, 4]] * 2


def test_without_the_package(job, refused, run, monkeypatch):
    monkeypatch.setattr("hpcfl.io.packages.find_spec", lambda name: None)
    line = refused("run", job, "callbacks=[mlflow]", "--out", run)
    assert "callbacks.0: found mlflow, but no package mlflow; say `pip install mlflow-" in line
    assert not run.exists()


def test_a_tracker_that_hpcfl_does_not_know(job, refused):
    line = refused("check", job, "callbacks=[wandbb]")
    assert "callbacks.0: found 'wandbb', expected mlflow, tensorboard, wandb or a dotted" in line
    assert line.endswith("did you mean wandb?")


FAKE = """\
import os
from pathlib import Path

Settings = dict

def init(**given):
    file = Path(os.environ["TOLD"]).open("a")
    file.write(f"began in {os.environ['RANK']}\\n")

    class Run:
        id = "one"

        def log(self, values, step):
            file.write(f"{step}\\n")

        def finish(self, exit_code):
            file.close()

    return Run()
"""


def test_of_two_ranks_the_first_alone_sends(job, run, tmp_path):
    (tmp_path / "wandb.py").write_text(FAKE)
    (tmp_path / "wandb-1.0.dist-info").mkdir()  # as if it were installed there
    (tmp_path / "wandb-1.0.dist-info/RECORD").write_text("wandb.py,,\n")
    env = {"PYTHONPATH": str(tmp_path), "TOLD": str(tmp_path / "told")}
    done = finish(2, "run", job, "callbacks=[wandb]", "--out", run, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told").read_text().split("\n") == ["began in 0", *"01234", ""]


def test_the_files_of_mlflow(job, hpcfl, run, monkeypatch):
    """By the real package."""
    client = pytest.importorskip("mlflow", reason="mlflow is not installed").MlflowClient
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert hpcfl("run", job, "callbacks=[mlflow]", "--out", run).code == 0
    assert hpcfl("resume", run, "--round", "2", "rounds=6").code == 0
    found = client(tracking_uri=(run / "mlruns").as_uri())
    experiment = found.get_experiment_by_name("hpcfl").experiment_id
    (tracked,) = found.search_runs([experiment])
    assert (tracked.info.status, tracked.info.run_name) == ("FINISHED", "run")
    assert tracked.data.params["algorithm.name"] == "fedhbm"
    points = found.get_metric_history(tracked.info.run_id, "score/train_loss")
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [(p.step, p.value) for p in points] == [
        (line["round"], line["train_loss"]) for line in lines if "train_loss" in line
    ]


def test_the_files_of_wandb(job, hpcfl, run, monkeypatch):
    """By the real package."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert hpcfl("run", job, "callbacks=[wandb]", "--out", run).code == 0
    id = json.loads((run / "wandb.json").read_text())["id"]
    (file,) = (run / "wandb").glob(f"offline-run-*/run-{id}.wandb")
    assert b"test_accuracy" in file.read_bytes()
