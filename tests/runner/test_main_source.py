"""The source of classes and functions of a script or of the cells of a notebook."""

import linecache
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import hpcfl
from hpcfl.errors import JobError
from tests.forked import python
from tests.parallel.harness import environment
from tests.runner.test_objects import JOB, data

HEAD = """
import sys
import torch
import hpcfl
from torch import nn
from tests.runner.test_objects import JOB, data

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
from hpcfl.evaluation import Metric

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
    if text is IMPORTS:  # the processes of tests may have imported it already
        (code,) = (run / "kept").glob("code-*")
        assert "\nimport xml.dom.minidom as _" in code.read_text()
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
    """And names neither the code of an earlier run nor numbers of the script."""
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
    kept = [
        {path.name: path.read_text() for path in (tmp_path / f"runs/s{seed}/kept").glob("*.py")}
        for seed in range(3)
    ]
    assert len(kept[0]) == 2
    assert kept[0] == kept[1] == kept[2]
    text = "".join(kept[0].values())
    assert "from hpcfl.types import Positive\n" in text
    assert "SCALE = _numpy.dtype('<f8').type(0.5)" in text
    assert "__mp_main__" not in text
    table = hpcfl("report", tmp_path / "runs", "--layout", "seeds", "--format", "csv").out
    assert len(table) == 2
    assert table[1].startswith("Scaled,")
    ended = python(
        1, "-m", "hpcfl", "resume", tmp_path / "runs/s2", "rounds=3", env={"PYTHONPATH": "."}
    )
    assert ended.returncode == 0, ended.stderr


CHANGED = {
    "replaced": """
Net.forward = lambda self, x: self.layer(x) * 0
""",
    "added": """
def extra_repr(self):
    return "mine"
Net.extra_repr = extra_repr
""",
    "of a module": """
Net.forward = nn.Identity.forward
""",
    "a value": """
class Net(nn.Module):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x):
        return self.layer(x) * self.factor
Net.factor = 2.0
""",
    "the file": """
from pathlib import Path
script = Path(__file__)
script.write_text(script.read_text().replace("return self.layer(x)", "return self.layer(x) * 3"))
""",
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_class_that_is_not_as_its_source_says_is_refused(tmp_path, name):
    run = tmp_path / "run"
    end = "\nhpcfl.run(JOB, model=Net, data=data(), out=sys.argv[1])\n"
    (tmp_path / "script.py").write_text(HEAD + CHANGED[name] + end)
    ended = python(1, tmp_path / "script.py", run)
    assert ended.returncode != 0
    assert "is not as the source of Net says: it was changed after its definition" in ended.stderr
    assert not run.exists()


OWN_NAME = """
class Net(nn.Module):
    pass

class Net(Net):
    pass

hpcfl.run(JOB, model=Net, data=data(), out=sys.argv[1])
"""
TENSOR = """
TABLE = torch.ones(3)

class Net(nn.Module):
    def forward(self, x):
        return x * TABLE

hpcfl.run(JOB, model=Net, data=data(), out=sys.argv[1])
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OWN_NAME, "Net is derived from an earlier class of the same name"),
        (TENSOR, "Net uses the Tensor TABLE of this script or notebook, which cannot be kept"),
    ],
)
def test_a_class_that_cannot_be_kept_is_refused(tmp_path, text, said):
    (tmp_path / "script.py").write_text(HEAD + text)
    ended = python(1, tmp_path / "script.py", tmp_path / "run")
    assert f"JobError: hpcfl.run(model=...): {said}" in ended.stderr
    assert not (tmp_path / "run").exists()


RAISES = """
from __future__ import annotations
import sys
import torch
import hpcfl
from torch import nn
from tests.runner.test_objects import JOB, data

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
    (code,) = (
        f for f in (tmp_path / "run" / "kept").glob("code-*") if "class Net" in f.read_text()
    )
    assert "width: int = 8" in code.read_text()


def test_a_model_of_another_run_is_refused(tmp_path, cell):
    cell(HEAD.replace("import hpcfl", ""))
    hpcfl.run(JOB, model=sys.modules["__main__"].Net, data=data(), out=tmp_path / "run")
    with pytest.raises(
        JobError, match=r"Net is of the code that another run keeps, which no other"
    ):
        hpcfl.check(JOB, model=hpcfl.load_model(tmp_path / "run"), data=data())
    net = nn.Linear(5, 4)
    net.register_forward_hook(lambda *_: None)
    with pytest.raises(JobError, match=r"the module cannot be pickled.*lambda"):
        hpcfl.check(JOB, model=net, data=data())
