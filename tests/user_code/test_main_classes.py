"""Classes and functions of a script, or of the cells of a notebook, that a run keeps."""

import linecache
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import hpcfl
from tests.forked import python
from tests.parallel.harness import environment
from tests.start.test_objects import JOB, data

HEAD = """
import sys
import torch
import hpcfl
from torch import nn
from tests.start.test_objects import JOB, data

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 4)

    def forward(self, x):
        return self.layer(x)
"""
FUNCTIONS = """
FACTOR = 2.0

def act(z):
    return torch.tanh(z) * FACTOR

def hook(module, inputs, output):
    return act(output)

class Sized:
    def __init__(self, size):
        self.size = size

net = nn.Sequential(
    nn.Unflatten(1, (1, 5)),
    nn.TransformerEncoderLayer(5, 5, 8, dropout=0.0, activation=act, batch_first=True),
    nn.Flatten(),
    nn.Linear(5, 4),
)
net[-1].register_forward_hook(hook)
net.sized = Sized(3)
hpcfl.run(JOB, model=net, data=data(), out=sys.argv[1])
"""
REDEFINED = """
class Net(Net):
    pass

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(x)))

hpcfl.run(JOB, model=Net, data=data(), out=sys.argv[1])

class Net(nn.Module):
    def forward(self, x):
        raise ValueError("of later")
"""
IN_OVERRIDES = """
def make(outputs):
    return Net()

for of, out in ((Net, sys.argv[1]), (make, sys.argv[1] + "-made")):
    hpcfl.run(JOB, {"model": {"name": "module", "of": of}}, data=data(), out=out)
"""
IMPORTS = """
import xml.dom.minidom
import xml as markup
import torch.utils.benchmark

class Parsing(Net):
    def forward(self, x):
        markup.dom.minidom.parseString("<a/>")
        return super().forward(x)

hpcfl.run(JOB, model=Parsing, data=data(), out=sys.argv[1])
"""
SCORES = """
from hpcfl import Metric

SHARE = 0.5

def halves(outputs, labels):
    return SHARE * (outputs.argmax(1) == labels).double()

class Hits(Metric):
    def sums(self, outputs, labels):
        return torch.stack([halves(outputs, labels).sum()])

    def score(self, sums):
        return sums[0].item()

class Notes(hpcfl.Callback):
    def __init__(self, ending="txt"):
        self.ending = ending

    def start(self, run):
        self.directory = run.directory

    def round(self, record, model):
        (self.directory / f"{record['round']}.{self.ending}").write_text("")

settings = {
    "evaluate": {"every": 1, "metrics": [halves, Hits]},
    "callbacks": [Notes, {"name": Notes, "ending": "note"}],
}
hpcfl.run(JOB, settings, model=Net, data=data(), out=sys.argv[1])
"""


@pytest.mark.parametrize("text", [FUNCTIONS, REDEFINED, IN_OVERRIDES, IMPORTS, SCORES])
def test_what_a_script_defines_is_found_by_another_process(tmp_path, text):
    (tmp_path / "script.py").write_text(HEAD + text)
    run = tmp_path / "run"
    ended = python(1, tmp_path / "script.py", run)
    assert ended.returncode == 0, ended.stderr
    # Not this process: it may have imported what the code needs.
    ended = python(1, "-m", "hpcfl", "resume", run, "rounds=3", env={"PYTHONPATH": str(Path.cwd())})
    assert ended.returncode == 0, ended.stderr
    if text is REDEFINED:
        assert hpcfl.load_model(run).last.in_features == 8
    if text is SCORES:
        log = hpcfl.read_log(run)
        assert (log.test_halves * 2).tolist() == log.test_accuracy.tolist()
        assert (log.test_Hits > 0).all()
        notes = sorted(path.name for path in run.iterdir() if path.suffix in (".txt", ".note"))
        assert notes == sorted(f"{t}.{ending}" for t in range(4) for ending in ("note", "txt"))
        assert "calls Notes, Notes" in ended.stderr


AGAIN = """
from dataclasses import dataclass
import numpy as np
from hpcfl.algorithms.fedavg import FedAvg
from reexport import Positive, Vector

SCALE = np.float64(0.5)
COUNT = np.int64(4)

@dataclass(frozen=True, kw_only=True)
class Scaled(FedAvg):
    factor: Positive = 1.0

    def finish(self, y: Vector, local, message, state, client):
        upload, state = super().finish(y, local, message, state, client)
        return upload._replace(delta=float(SCALE) * self.factor * upload.delta), state

class Numbered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, COUNT)

    def forward(self, x):
        return self.layer(x)

for seed in range(3):
    settings = {"algorithm": {"name": Scaled, "factor": 0.5}, "seed": seed}
    hpcfl.run(JOB, settings, model=Numbered, data=data(), out=f"{sys.argv[1]}/s{seed}")
again = hpcfl.run(
    JOB, settings, model=Numbered, data=data(), out=f"{sys.argv[1]}/s2", continued=True
)
assert again.rounds == 2
"""


def test_the_code_that_is_kept_is_the_same_in_later_runs_of_a_process(tmp_path, hpcfl):
    (tmp_path / "reexport.py").write_text("from hpcfl.types import Positive, Vector\n")
    (tmp_path / "script.py").write_text(HEAD + AGAIN)
    # A process of its own: one that multiprocessing starts has another __mp_main__.
    ended = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path / "runs"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    kept = [path.stem[:-16] for path in (tmp_path / "runs").glob("s*/kept/*.pkl")]
    assert len(kept) == 3
    assert len({*kept}) == 1
    table = hpcfl("report", tmp_path / "runs", "--layout", "seeds", "--format", "csv").out
    assert len(table) == 2
    assert table[1].startswith("Scaled,")
    ended = python(
        1, "-m", "hpcfl", "resume", tmp_path / "runs/s2", "rounds=3", env={"PYTHONPATH": "."}
    )
    assert ended.returncode == 0, ended.stderr


NOW = """
LIMIT = threading.Lock  # a class of another module
TABLE = torch.ones(4)

class Net(Net):  # derived from an earlier one of the same name
    def forward(self, x):
        return super().forward(x) * 0

Net.forward = lambda self, x: self.layer(x) + TABLE

def make(scale):
    class Scaled(Net):
        def forward(self, x):
            return super().forward(x) * scale
    return Scaled

hpcfl.run(JOB, model=make(2.0), data=data(), out=sys.argv[1])
hpcfl.run(JOB, model=lambda: make(2.0)(), data=data(), out=sys.argv[1] + "-lambda")
"""


def test_a_class_is_kept_as_it_is_now(tmp_path):
    """Also one that was changed after its definition, of a function, or with a tensor."""
    run = tmp_path / "run"
    (tmp_path / "script.py").write_text(f"import threading\n{HEAD}{NOW}")
    ended = python(1, tmp_path / "script.py", run)
    assert ended.returncode == 0, ended.stderr
    model, made = hpcfl.load_model(run), hpcfl.load_model(f"{run}-lambda")
    x = torch.randn(3, 5)
    assert torch.equal(model(x), (model.layer(x) + 1) * 2)
    assert torch.equal(model(x), made(x))


ANNOTATED = """
from __future__ import annotations
import sys
from dataclasses import dataclass
import hpcfl
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.types import Share
from tests.start.test_objects import JOB, data

@dataclass(frozen=True, kw_only=True)
class Half(FedAvg):
    share: Share = 0.5

hpcfl.run(JOB, {"algorithm": {"name": Half}}, data=data(), out=sys.argv[1])
"""


def test_annotations_that_are_texts(tmp_path):
    run = tmp_path / "run"
    (tmp_path / "script.py").write_text(ANNOTATED)
    ended = python(1, tmp_path / "script.py", run)
    assert ended.returncode == 0, ended.stderr
    ended = python(1, "-m", "hpcfl", "resume", run, "rounds=3", env={"PYTHONPATH": str(Path.cwd())})
    assert ended.returncode == 0, ended.stderr
    ended = python(1, "-m", "hpcfl", "run", run / "job.yaml", "algorithm.share=2")
    assert "algorithm.share: found 2" in ended.stderr


RAISES = """
from __future__ import annotations
import sys
import torch
import hpcfl
from torch import nn
from tests.start.test_objects import JOB, data

def doubled(x: Unknown):
    if FAIL == "function":
        raise ValueError("here")
    return 2 * x

FAIL = sys.argv[2]
if True:
    def within(x):
        if FAIL == "within":
            raise ValueError("here")
        return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    @torch.no_grad()
    def shown(self, x):
        if FAIL == "method":
            raise ValueError("here")

    def forward(self, x):
        self.shown(x)
        return within(doubled(self.layer(x)))

hpcfl.run(JOB, model=Net, data=data(), out=sys.argv[1])
"""


@pytest.mark.parametrize("where", ["function", "within", "method"])
def test_an_error_names_the_line_of_the_script(tmp_path, where):
    script, run = tmp_path / "script.py", tmp_path / "run"
    script.write_text(RAISES)
    ended = python(1, script, run, where)
    lines = RAISES.splitlines()
    line = next(k for k, text in enumerate(lines) if f'"{where}"' in text) + 2
    assert f"({script}:{line}): ValueError: here" in ended.stderr
    assert ended.returncode != 0
    ended = python(1, script, run, "nowhere")
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def cell(monkeypatch):
    """Executes a cell of a notebook, which linecache knows under a name of its own."""
    main = sys.modules["__main__"]
    monkeypatch.delattr(main, "__file__", raising=False)
    before = dict(vars(main))
    count = 0

    def execute(text):
        nonlocal count
        count += 1
        text, name = textwrap.dedent(text), f"ipykernel_1/{count}.py"
        lines = text.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, name, (len(text), None, lines, name))
        exec(compile(text, name, "exec"), vars(main))  # noqa: S102

    yield execute
    for name in [*vars(main)]:
        if name not in before:
            delattr(main, name)


def test_classes_of_cells_without_methods(cell, tmp_path, own_process):
    """Python knows no file of a named tuple or a dataclass that has no method of its own."""
    torch.set_num_threads(1)
    cell(
        """
        from dataclasses import dataclass
        from typing import NamedTuple
        import torch
        from torch import nn, zeros_like
        from hpcfl.algorithms.base import Algorithm

        @dataclass
        class Config:
            width: int = 99
        """
    )
    cell(
        """
        class Server(NamedTuple):
            x: torch.Tensor
            h: torch.Tensor

        @dataclass
        class Config:
            width: int = 8

        @dataclass(frozen=True, kw_only=True)
        class Mine(Algorithm):
            def init_server(self, x0):
                return Server(x0, zeros_like(x0))

            def update(self, server, mean, cohort):
                return Server(server.x - self.server_lr * mean.delta, server.h)
        """
    )
    cell(
        """
        class Net(nn.Module):
            def __init__(self, config=None):
                super().__init__()
                width = (config or Config()).width
                self.first, self.last = nn.Linear(5, width), nn.Linear(width, 4)

            def forward(self, x):
                return self.last(self.first(x))
        """
    )
    main = sys.modules["__main__"]
    own = {"algorithm.name": main.Mine}
    result = hpcfl.run(JOB, own, model=main.Net, data=data(), out=tmp_path / "run")
    assert result.model().first.out_features == 8
    hpcfl.run(JOB, own, model=main.Net(main.Config(3)), data=data(), out=tmp_path / "module")


def test_a_model_of_another_run(tmp_path, cell, own_process):
    torch.set_num_threads(1)
    cell(HEAD.replace("import hpcfl", ""))
    hpcfl.run(JOB, model=sys.modules["__main__"].Net, data=data(), out=tmp_path / "run")
    model = hpcfl.load_model(tmp_path / "run")
    again = hpcfl.run(JOB, model=model, data=data(), out=tmp_path / "again")
    assert hpcfl.load_model(again.directory).layer.in_features == 5
