"""The code of the user's classes: what was edited between the starts of a run is told."""

import sys

import pytest

from tests.rundirs import starts

MINE = """\
from helpers import scaled

from hpcfl.algorithms.fedavg import FedAvg


class Mine(FedAvg):
    def direction(self, point, local, grad, client):
        return scaled(grad(point)), local
"""
NET = """\
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))
"""
HELPERS = "def scaled(vector):\n    return vector * 2\n"


@pytest.fixture
def run(tmp_path, job, hpcfl, monkeypatch):
    """Play up to a round in this process, with the modules as they are then."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def played(*arguments):
        for name in ("mine", "helpers", "net"):
            sys.modules.pop(name, None)
        return hpcfl(*arguments)

    yield played
    for name in ("mine", "helpers", "net"):
        sys.modules.pop(name, None)


def test_a_module_that_was_edited_is_told(run, job, tmp_path):
    out = tmp_path / "run"
    assert run("run", job, "algorithm={name: mine.Mine}", "--out", out).code == 0
    (start,) = starts(out)
    assert sorted(start["code"]) == ["helpers", "mine"]
    assert run("resume", out, "rounds=6").code == 0
    assert not any("was edited since" in line for line in run("resume", out, "rounds=8").err)
    (tmp_path / "helpers.py").write_text(HELPERS.replace("2", "3"))
    done = run("resume", out, "rounds=10")
    assert done.code == 0
    (line,) = [line for line in done.err if "was edited" in line]
    assert line == (
        f"module helpers ({tmp_path}/helpers.py) was edited since the last start; rounds after 8 "
        "follow the new code"
    )
    before, now = (entry["code"] for entry in starts(out)[-2:])
    assert before["mine"] == now["mine"]
    assert before["helpers"] != now["helpers"]


def test_an_import_that_cannot_be_resolved_is_left_out(run, job, tmp_path):
    """As in modules that work in a package and beside their helpers."""
    either = "try:\n    from .helpers import scaled\nexcept ImportError:\n    "
    (tmp_path / "mine.py").write_text(either + MINE)
    assert run("run", job, "algorithm={name: mine.Mine}", "--out", tmp_path / "run").code == 0
    (start,) = starts(tmp_path / "run")
    assert sorted(start["code"]) == ["helpers", "mine"]


def test_a_module_that_has_any_name_is_a_module_like_others(run, job, tmp_path):
    """As packages that load their parts when they are asked for them may be."""
    any_name = "\n\ndef __getattr__(name):\n    return None\n"
    (tmp_path / "helpers.py").write_text(HELPERS + any_name)
    (tmp_path / "mine.py").write_text(MINE + any_name)
    assert run("run", job, "algorithm={name: mine.Mine}", "--out", tmp_path / "run").code == 0
    (start,) = starts(tmp_path / "run")
    assert sorted(start["code"]) == ["helpers", "mine"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("mine.Nope", "has no attribute 'Nope'"),
        ("mine.MINE", "did you mean Mine?"),
        ("absent.Net", "set PYTHONPATH=. if it is in the current directory"),
    ],
)
def test_a_model_that_cannot_be_imported_is_one_line(name, advice, run, job, tmp_path):
    model = f"model={{name: module, of: {name}}}"
    for command in (("run", job, model, "--out", tmp_path / "run"), ("check", job, model)):
        done = run(*command)
        assert done.code == 2
        (line,) = done.err
        assert f"model.of: '{name}' cannot be imported" in line
        assert line.endswith(advice)


def test_a_model_whose_module_raises_anything_is_one_line(run, job, tmp_path, monkeypatch):
    """As a torchvision does that was built for another torch."""
    (tmp_path / "broken.py").write_text('raise RuntimeError("operator nms does not exist")\n')
    monkeypatch.setenv("HPCFL_TRACEBACK", "")
    done = run("check", job, "model={name: module, of: broken.Net}")
    assert done.code == 2
    (line,) = done.err
    where = f"in <module> ({tmp_path}/broken.py:1): RuntimeError: operator nms does not exist"
    assert f"model.of: 'broken.Net' cannot be imported {where}; HPCFL_TRACEBACK=1" in line


@pytest.mark.parametrize(
    "keys",
    [
        "model={name: module, of: leaves.Net}",
        "algorithm={name: leaves.Mine}",
        "callbacks=[leaves.Notes]",
        "evaluate.metrics=[leaves.score]",
        "loss={kind: own, of: leaves.loss}",
    ],
)
def test_a_module_that_ends_the_program_cannot_be_imported(keys, run, job, tmp_path):
    (tmp_path / "leaves.py").write_text("import sys\n\nsys.exit(0)\n")
    done = run("check", job, keys)
    assert done.code == 2
    (line,) = done.err
    assert f"cannot be imported in <module> ({tmp_path}/leaves.py:3): SystemExit: 0" in line


def test_the_first_cause_of_a_failed_import_is_said(run, job, tmp_path):
    """transformers blames a module of its own where torchvision was built for another torch."""
    (tmp_path / "broken.py").write_text(
        'try:\n    raise RuntimeError("operator torchvision::nms does not exist")\n'
        'except RuntimeError as e:\n    raise ModuleNotFoundError("Bloom is absent") from e\n'
    )
    for keys in ("model={name: module, of: broken.Net}", "algorithm={name: broken.Mine}"):
        done = run("check", job, keys)
        assert done.code == 2
        (line,) = done.err
        assert "Bloom is absent; because of RuntimeError: operator torchvision::nms does" in line
        assert "not exist; torchvision was built for another torch: install both from one" in line


def test_a_job_of_hpcfls_classes_has_no_code(run, job, tmp_path):
    assert run("run", job, "--out", tmp_path / "run").code == 0
    (start,) = starts(tmp_path / "run")
    assert start["code"] == {}


def test_a_model_that_was_edited_into_another_shape_is_one_line(run, job, tmp_path):
    out, net = tmp_path / "run", "model={name: module, of: net.Net}"
    assert run("run", job, net, "--out", out).code == 0
    (tmp_path / "net.py").write_text(NET.replace("5", "6"))
    told = (
        f"StoreError: {out}/initial.npy: found (44,) torch.float32, expected (52,) torch.float32 "
        "of the model with the data and code as they are now; put back the run's data and code"
    )
    for command in (
        ("resume", out, "rounds=6"),
        ("resume", out, "rounds=6", "--out", tmp_path / "copy"),
    ):
        done = run(*command)
        assert (done.code, done.err[-1]) == (2, told)
    weights = tmp_path / "x.safetensors"
    done = run("export", out, "--state-dict", weights)
    assert (done.code, done.err[-1]) == (
        2,
        f"StoreError: {out}: the model has 52 parameters with the data and code as they are now, "
        "44 in the checkpoint; put back the run's data and code",
    )
    (tmp_path / "net.py").write_text(NET)
    assert run("resume", out, "rounds=6").code == 0
    assert run("export", out, "--state-dict", weights).code == 0
