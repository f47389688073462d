"""Callbacks of the user's own: when they are called, that they change nothing, how they fail."""

import json
import os
import re
import signal
import sys
from importlib import import_module
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

import hpcfl as api
from hpcfl.comm.watched import WatchedComm
from hpcfl.engine.callbacks import Callbacks, RoundModel
from hpcfl.errors import HookError, JobError
from hpcfl.runs.layout import RunDir
from hpcfl.start import checkpointer
from hpcfl.start.components.components import Components
from hpcfl.user_code.generators import generators
from tests.forked import finish

CALLBACKS = '''\
import os
import random
import signal

import numpy as np
import torch

import hpcfl


class Notes(hpcfl.Callback):
    """Writes what it is told, a line a call."""

    def __init__(self, every=1):
        self._every = every

    def start(self, run):
        self._path = run.directory / "notes.txt"
        self._note("start", run.round, run.rounds, run.ranks, run.job["cohort"]["size"])
        run.job["rounds"] = 1

    def round(self, record, model):
        if record["round"] % self._every == 0:
            drawn = random.random() + np.random.rand() + float(torch.rand(()))
            self._note(record["round"], record.get("clients"), drawn, float(model.vector().sum()))

    def end(self, status):
        self._note("end", status)

    def _note(self, *words):
        with self._path.open("a") as file:
            print(*words, file=file)


class Meddles(hpcfl.Callback):
    """Changes all that it can reach."""

    def start(self, run):
        self._change()

    def round(self, record, model):
        record.clear()
        model.vector().zero_()
        for tensor in model.module().train().state_dict().values():
            tensor.zero_()
        self._change()

    def _change(self):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_num_threads(2)
        torch.set_grad_enabled(False)
        torch.set_deterministic_debug_mode("default")
        torch.set_float32_matmul_precision("medium")
        torch.set_flush_denormal(True)
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark


class Fails(hpcfl.Callback):
    def round(self, record, model):
        if record["round"] == 3:
            hpcfl.load_model("absent")


class FailsAtEnd(hpcfl.Callback):
    def end(self, status):
        raise ZeroDivisionError(status)


class Interrupts(hpcfl.Callback):
    def round(self, record, model):
        if record["round"] == 2:
            os.kill(os.getpid(), int(os.environ["SENT"]))


class Nothing(hpcfl.Callback):
    def on_round(self, record):
        pass


class Near(hpcfl.Callback):
    def rounds(self, record, model):
        pass


class Old(hpcfl.Callback):
    def round(self, record):
        pass


class Needs(hpcfl.Callback):
    def __init__(self, path):
        raise ValueError(f"no {path}")

    def end(self, status):
        pass


class Exits(hpcfl.Callback):
    def round(self, record, model):
        if record["round"] == 2:
            raise SystemExit(0)


class ExitsWhenMade(hpcfl.Callback):
    def __init__(self):
        raise SystemExit(0)

    def end(self, status):
        pass


class Made(Notes):
    """Changes the process and draws as soon as it is made."""

    def __init__(self, path):
        with open(path, "a") as file:
            print(os.getpid(), random.random() + float(torch.rand(())), file=file)
        torch.manual_seed(1)
        torch.set_default_dtype(torch.float64)
        torch.set_flush_denormal(True)
        super().__init__()


class Plain:
    pass
'''
MEDDLES = "callbacks=[mine.Notes, mine.Meddles, {name: mine.Notes, every: 2}]"


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch, own_process):
    path = tmp_path / "mine.py"
    path.write_text(CALLBACKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield path
    sys.modules.pop("mine", None)


def notes(run):
    return [line.split() for line in (run / "notes.txt").read_text().splitlines()]


def rounds(run):
    return [int(words[0]) for words in notes(run) if words[0].isdigit()]


def results(run):
    """The final model, client states, and what the log has beside measurements."""
    exported = run.parent / f"{run.name}.npz"
    api.export(run, exported, clients=True)
    with np.load(exported) as arrays:
        states = {name: array.tobytes() for name, array in arrays.items()}
    keys = ("round", "clients", "train_loss", "test_loss", "up_bytes")
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return states, [[line.get(key) for key in keys] for line in lines]


def test_when_they_are_called_and_that_nothing_depends_on_them(job, hpcfl, tmp_path, monkeypatch):
    """Also with a relative run directory, which a callback's chdir must not move."""
    monkeypatch.chdir(tmp_path)
    assert hpcfl("run", job, MEDDLES, "--out", "with").code == 0
    assert hpcfl("run", job, "--out", "without").code == 0
    assert results(tmp_path / "with") == results(tmp_path / "without")
    found = notes(tmp_path / "with")
    assert found[:2] == [["start", "0", "4", "1", "2"]] * 2
    assert found[-2:] == [["end", "finished"]] * 2
    assert rounds(tmp_path / "with") == [0, 0, 1, 2, 2, 3, 4, 4]
    drawn = [words[2] for words in found[2:-2]]
    assert len({*drawn}) == len(drawn)  # of every round and callback
    x = api.load_model(tmp_path / "with")
    total = torch.cat([p.detach().flatten() for p in x.parameters()]).sum()
    assert float(found[-3][3]) == pytest.approx(float(total))


def test_threads_write_to_absolute_paths(job, tmp_path, monkeypatch):
    """Else what they write while a callback is in another folder would be lost, or fail."""
    paths = set()

    def noted(owner, name, place):
        call = getattr(owner, name)

        def noting(*arguments):
            paths.add(arguments[place])
            return call(*arguments)

        monkeypatch.setattr(owner, name, noting)

    noted(checkpointer, "begin", 0)
    noted(Components, "store", 1)
    noted(WatchedComm, "start_heartbeats", 1)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    assert api.run(job, out="run").directory == run
    assert api.resume("run", ["rounds=5"]).directory == run
    assert paths == {run / name for name in ("checkpoints", "stores", "ranks")}


def test_a_run_in_another_thread_is_refused(job, tmp_path):
    found = []

    def play():
        with pytest.raises(JobError, match="found the thread mine, expected the main thread"):
            api.run(job, out=tmp_path / "run")
        found.append("refused")

    thread = Thread(target=play, name="mine")
    thread.start()
    thread.join()
    assert found == ["refused"]
    assert not (tmp_path / "run").exists()


def test_the_process_is_left_as_it_was(module, determinism):
    torch.set_deterministic_debug_mode("error")
    settings = (
        Path.cwd,
        torch.get_default_dtype,
        torch.get_default_device,
        torch.get_num_threads,
        torch.is_grad_enabled,
        torch.get_deterministic_debug_mode,
        torch.get_float32_matmul_precision,
        lambda: torch.backends.cudnn.benchmark,
        lambda: sys.float_info.min / len("ab") == 0,
    )
    x, net, record = torch.ones(3), torch.nn.Linear(2, 1), {"round": 1}
    meddles = import_module("mine").Meddles()
    before, drawn = [read() for read in settings], generators()
    Callbacks([("mine.Meddles", meddles)], 0).round(record, RoundModel(x, net))
    assert not generators().changed(drawn)
    assert [read() for read in settings] == before
    assert (x.tolist(), record, net.training) == ([1.0] * 3, {"round": 1}, True)
    meddles._change()
    assert all(read() != old for read, old in zip(settings, before, strict=True))
    for restore in (
        lambda: torch.set_default_dtype(before[1]),
        lambda: torch.set_default_device(None),
        lambda: torch.set_num_threads(before[3]),
        lambda: torch.set_grad_enabled(before[4]),
        lambda: torch.set_float32_matmul_precision(before[6]),
        lambda: setattr(torch.backends.cudnn, "benchmark", before[7]),
        lambda: torch.set_flush_denormal(False),
        lambda: os.chdir(before[0]),
    ):
        restore()


def test_on_two_ranks_failed_and_resumed_on_one(job, hpcfl, tmp_path, module):
    """Rank 0 alone calls; rounds after the checkpoint are played, and told, again."""
    plain, run = tmp_path / "plain", tmp_path / "run"
    assert hpcfl("run", job, "--out", plain).code == 0
    settings = "callbacks=[mine.Notes, mine.Meddles, mine.Fails]"
    env = {"PYTHONPATH": str(module.parent)}
    done = finish(2, "run", job, "checkpoint.every=1", settings, "--out", run, env=env)
    assert done.returncode == 1, done.stderr
    assert "[rank 0 of 2] HookError: callbacks: mine.Fails: after round 3 in" in done.stderr
    assert hpcfl("resume", run, "callbacks=[mine.Notes]").code == 0
    assert results(run) == results(plain)
    first, again = (words for words in notes(run) if words[0] == "start")
    assert first == ["start", "0", "4", "2", "2"]
    assert int(again[1]) < 3
    assert rounds(run) == [0, 1, 2, 3, *range(int(again[1]) + 1, 5)]
    draws = {}
    for number, _, drawn, _ in (words for words in notes(run) if words[0].isdigit()):
        draws.setdefault(number, set()).add(drawn)
    assert all(len(values) == 1 for values in draws.values())  # the same when told again


def test_one_may_stop_the_run_by_a_signal(job, hpcfl, tmp_path, monkeypatch):
    monkeypatch.setenv("SENT", str(int(signal.SIGTERM)))
    run = tmp_path / "run"
    stopped = hpcfl("run", job, "callbacks=[mine.Notes, mine.Interrupts]", "--out", run)
    assert stopped.code == 75
    assert rounds(run) == [0, 1, 2, 3]
    assert notes(run)[-1] == ["end", "stopped"]
    assert hpcfl("resume", run, "callbacks=[mine.Notes]").code == 0
    assert rounds(run) == [0, 1, 2, 3, 4]


def test_an_error_ends_the_run_in_one_line(job, hpcfl, tmp_path):
    """Exit code 1, though the error within has another; a resume goes on."""
    run = tmp_path / "run"
    done = hpcfl("run", job, "callbacks=[mine.Fails, mine.Notes]", "--out", run)
    assert done.code == 1
    (line,) = [line for line in done.err if "Error" in line]
    number = CALLBACKS.splitlines().index('            hpcfl.load_model("absent")') + 1
    where = f"in round ({tmp_path}/mine.py:{number})"
    assert line.startswith(f"HookError: callbacks: mine.Fails: after round 3 {where}: JobError: ")
    assert notes(run)[-1] == ["end", "failed"]
    assert rounds(run) == [0, 1, 2]
    assert hpcfl("resume", run, "callbacks=[mine.Notes]").code == 0
    assert rounds(run)[-1] == 4


def test_it_is_made_once_on_rank_0_and_changes_nothing(job, hpcfl, tmp_path, module):
    plain, run, made = tmp_path / "plain", tmp_path / "run", tmp_path / "made.txt"
    assert hpcfl("run", job, "--out", plain).code == 0
    setting = f"callbacks=[{{name: mine.Made, path: {made}}}]"
    assert hpcfl("check", job, setting, "--data").code == 0
    assert not made.exists()
    env = {"PYTHONPATH": str(module.parent)}
    done = finish(2, "run", job, "rounds=3", setting, "--out", run, env=env)
    assert done.returncode == 0, done.stderr
    assert hpcfl("resume", run, "rounds=4").code == 0
    assert results(run)[0] == results(plain)[0]
    (first, draw), (second, again) = (line.split() for line in made.read_text().splitlines())
    assert first != second
    assert draw == again  # follows from the seed


@pytest.mark.parametrize("ranks", [1, 2])
def test_sys_exit_ends_no_run_as_if_it_were_finished(job, tmp_path, module, ranks):
    run, env = tmp_path / "run", {"PYTHONPATH": str(module.parent)}
    done = finish(ranks, "run", job, "callbacks=[mine.Exits]", "--out", run, env=env)
    assert done.returncode == 1
    assert "HookError: callbacks: mine.Exits: after round 2 in round (" in done.stderr
    cure = "SystemExit: 0; to end the run with a checkpoint, return True from round"
    assert cure in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{name: mine.Needs, path: a.txt}", "mine.Needs: cannot be made in __init__ ("),
        ("mine.ExitsWhenMade", "mine.ExitsWhenMade: cannot be made in __init__ ("),
    ],
)
def test_one_that_cannot_be_made(job, refused, tmp_path, entry, said):
    line = refused("run", job, f"callbacks=[{entry}]", "--out", tmp_path / "run")
    assert line.startswith("JobError: callbacks.0: ")
    assert said in line
    assert not (tmp_path / "run").exists()


class FailsAtStart(api.Callback):
    def start(self, run):
        raise ValueError("boom")


def test_an_error_at_the_start_is_in_the_history(job, tmp_path):
    run = tmp_path / "run"
    api.run(job, out=run)
    with pytest.raises(HookError, match="FailsAtStart: at the start in start"):
        api.resume(run, {"rounds": 6}, callbacks=[FailsAtStart()])
    starts = RunDir(run).history_entries()
    assert [entry["round"] for entry in starts] == [0, 4]
    assert "boom" in json.dumps(starts[-1])


def test_an_error_at_the_end(job, hpcfl, tmp_path):
    """It fails the start, but hides no earlier error, and the others are told of the end."""
    run = tmp_path / "run"
    done = hpcfl("run", job, "callbacks=[mine.FailsAtEnd, mine.Notes]", "--out", run)
    assert done.code == 1
    assert re.search("HookError: callbacks: mine.FailsAtEnd: at the end in end", done.err[-1])
    assert notes(run)[-1] == ["end", "finished"]
    assert hpcfl("resume", run, "callbacks=[]").code == 0
    both = hpcfl("run", job, "callbacks=[mine.FailsAtEnd, mine.Fails]", "--out", tmp_path / "both")
    assert both.code == 1
    assert "warning: callbacks: mine.FailsAtEnd: at the end in end" in "\n".join(both.err)
    assert "mine.Fails: after round 3" in both.err[-1]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("mine.Nothing", "0: mine.Nothing defines none of start, round, end, so nothing would"),
        ("mine.Near", "0: 'mine.Near' defines rounds, which nothing calls; did you mean round?"),
        ("mine.Old", "takes (self, record), expected (self, record, model)"),
        ("mine.Plain", "0: mine.Plain is <class 'mine.Plain'>, expected a class derived from"),
        ("mine.Needs", "0.path: missing; mine.Needs needs it"),
        ("{name: mine.Notes, evry: 2}", 'has no "evry" (it has every); did you mean every?'),
        ("{name: mine.Near, x: 1}", "which nothing calls"),
        ("{every: 2}", "0.name: missing; expected a dotted path to a class"),
        ("3", "0: found 3, expected text or a section"),
        ("absent.Notes", "'absent.Notes' cannot be imported: ModuleNotFoundError"),
        ("__main__.Notes", "put it into a module"),
    ],
)
def test_an_entry_that_is_no_callback(job, refused, entry, said):
    line = refused("check", job, f"callbacks=[{entry}]")
    assert line.startswith("JobError: command line: callbacks.0")
    assert said in line


def test_a_module_that_is_gone_stops_rounds_only(job, hpcfl, tmp_path, module):
    """A run can be shown and exported without its metrics and callbacks, and resumed less them."""
    module.write_text(f"{CALLBACKS}\n\ndef first(outputs, labels):\n    return outputs[:, 0]\n")
    run, metric = tmp_path / "run", "evaluate.metrics=[mine.first]"
    assert hpcfl("run", job, metric, "callbacks=[mine.Notes]", "--out", run).code == 0
    module.unlink()
    del sys.modules["mine"]
    assert hpcfl("status", run).code == 0
    assert hpcfl("export", run, "-o", tmp_path / "x.npz").code == 0
    again = hpcfl("resume", run, "rounds=5")
    assert (again.code, len(again.err)) == (2, 1)
    assert "'mine.first' cannot be imported" in again.err[0]
    assert hpcfl("resume", run, "rounds=5", "evaluate.metrics=[]", "callbacks=[]").code == 0


class Losses(api.Callback):
    def __init__(self):
        self.of_round, self.models, self.said = {}, [], []

    def round(self, record, model):
        self.of_round[record["round"]] = record.get("train_loss")
        self.models.append(model.module())

    def end(self, status):
        self.said.append(status)


def test_objects_from_python(job, tmp_path):
    """They are called beside the job's, and belong to the call."""
    run, losses = tmp_path / "run", Losses()
    result = api.run(job, {"callbacks": ["mine.Notes"]}, out=run, callbacks=[losses])
    assert losses.of_round == {line["round"]: line.get("train_loss") for line in result.log}
    assert losses.said == ["finished"]
    assert rounds(run) == [0, 1, 2, 3, 4]
    net = losses.models[-1]
    assert not net.training
    assert all(map(torch.equal, net.parameters(), result.model().parameters()))
    assert not all(map(torch.equal, net.parameters(), losses.models[0].parameters()))
    again = Losses()
    api.resume(run, {"rounds": 6, "callbacks": []}, callbacks=(again,))
    assert [*again.of_round] == [5, 6]
    assert "Losses" not in (run / "job.yaml").read_text()
    for wrong in (Losses, [Losses], losses, [print]):
        with pytest.raises(JobError, match=r"hpcfl.run\(callbacks=...\): found .*expected a list"):
            api.run(job, out=tmp_path / "wrong", callbacks=wrong)
