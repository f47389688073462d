"""Mistakes of the first hour: each gives one line that says what to do."""

import importlib.util
import shlex

import pytest

from hpcfl.cli.main import main

NET = """\
from torch import nn

def norm(outputs):
    return nn.Sequential(nn.Linear(64, 8), nn.SyncBatchNorm(8), nn.Linear(8, outputs))

def narrow(outputs, *, width):
    return nn.Linear(width, outputs)
"""
MISTAKES = [
    ("run quickstar", "no packaged job has this name"),
    ("run sweeps/quickstart", "this is a sweep, not a job"),
    ("sweep quickstart", "this is a job, not a sweep"),
    ("run runs/quickstart-rounds1", "is the directory of a run"),
    ("run quickstart rounds=1", "holds a run of this job already"),
    ("run quickstart local.lr", "expected key.path=value"),
    ("run quickstart local.lr=0,1", "found '0,1', expected a number"),
    ("run quickstart algorithm.bet=1", 'has no "bet"'),
    ("run quickstart algorithm.name=fedavgg", "did you mean fedavg?"),
    ("run space.yaml", "put a space after the colon"),
    ("run twice.yaml", "stands twice in this section"),
    ("run indented.yaml", "is not valid YAML"),
    ("run quickstart cohort.size=11", "cohorts of 11 clients"),
    ("run quickstart 'model={name: lenet}'", "takes images of shape"),
    ("run quickstart 'model={name: module, of: net.norm}'", "keeps running statistics"),
    ("run quickstart 'model={name: module, of: net.narrow}'", "net.narrow needs width"),
    (
        "run quickstart 'model={name: module, of: net.narrow}' model.arguments.widths=3",
        'has no "widths"',
    ),
    (
        "run quickstart 'model={name: module, of: net.narrow}' model.arguments.width=63",
        "cannot be trained on a batch",
    ),
    ("run mnist/fedavg_two_classes", "found neither MNIST/raw"),
    ("status nowhere", "holds no run (no job.yaml)"),
    ("report .", "so this is no run directory"),
    ("report runs --plot a.gif", "expected one in .png or .pdf or .svg"),
    ("report runs --y test_los", "no round in log.jsonl has"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with a finished run, three damaged jobs, and modules that do not fit."""
    made = tmp_path_factory.mktemp("first")
    texts = {"space": "local: {lr:0.1}", "twice": "seed: 0\nseed: 1", "indented": "seed: 0\n a: {}"}
    for name, text in texts.items():
        (made / f"{name}.yaml").write_text(f"task: digits\n{text}\n")
    (made / "net.py").write_text(NET)
    (made / "empty").mkdir()
    out = made / "runs/quickstart-rounds1"
    assert main(["run", "quickstart", "rounds=1", "--out", str(out)]) == 0
    return made


@pytest.mark.parametrize(("command", "part"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_a_mistake_is_one_line(folder, monkeypatch, own_process, refused, command, part):
    monkeypatch.chdir(folder / "empty" if command == "report ." else folder)
    monkeypatch.syspath_prepend(folder)
    line = refused(*shlex.split(command))
    assert part in line


def test_a_package_that_is_missing(folder, monkeypatch, own_process, refused):
    monkeypatch.chdir(folder)
    find_spec = importlib.util.find_spec
    for module in ("hpcfl.data.sources.digits", "hpcfl.comm.load_mpi"):
        monkeypatch.setattr(
            f"{module}.find_spec",
            lambda name, *more: None if name in ("sklearn", "mpi4py") else find_spec(name, *more),
        )
    for words in (["seed=5"], ["seed=6", "comm.backend=mpi"]):
        line = refused("run", "quickstart", *words)
        assert "pip install" in line


def test_more_ranks_than_clients(folder, monkeypatch, own_process, refused):
    monkeypatch.chdir(folder)
    line = refused("plan", "quickstart", "--ranks", "11")
    assert "a rank would own none" in line
