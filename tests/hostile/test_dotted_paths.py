"""No command that a job is given to calls what a job must not name, whatever key names it."""

import ast
import sys
from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml

import hpcfl as package
from hpcfl.errors import JobError
from hpcfl.job.description import _meanings
from hpcfl.job.load import load
from hpcfl.runs.job_file.yaml_file import add_checksum
from hpcfl.types import Section
from hpcfl.user_code.accepts import Accepts

KEYS = {
    "loss": lambda of, keys: {"loss": {"kind": "own", "of": of, "keys": keys}},
    "optimizer": lambda of, keys: {"local": {"optimizer": {"kind": "own", "of": of, "keys": keys}}},
    "schedule": lambda of, keys: {
        "local": {"steps": 1, "step_schedule": {"kind": "own", "of": of, "keys": keys}}
    },
    "metric": lambda of, keys: {"evaluate": {"metrics": [of]}},
    "callback": lambda of, keys: {"callbacks": [{"name": of, **keys}]},
    "maker": lambda of, keys: {"model": {"name": "module", "of": of, "arguments": keys}},
    "model": lambda of, keys: {"model": {"name": of, **keys}},
    "data": lambda of, keys: {"data": {"kind": of, **keys}},
    "algorithm": lambda of, keys: {"algorithm": {"name": of, **keys}},
}
"""A part of a job, by the key that takes a dotted path."""
PATHS = {
    "subprocess.Popen": {"args": ["touch", "MARK"]},
    "os.system": {"command": "touch MARK"},
    "os.mkdir": {"path": "MARK"},
    "runpy.run_path": {"path_name": "MARK.py"},
    "builtins.exec": {"source": "open('MARK', 'w')"},
    "torch.hub.load": {"repo_or_dir": ".", "model": "MARK"},
    "torch.load": {"f": "MARK", "weights_only": False},
    "torch.save": {"obj": 1, "f": "MARK"},
    "torch.jit.load": {"f": "MARK"},
    "torch.utils.data.DataLoader": {"dataset": "MARK"},
    "numpy.save": {"file": "MARK", "arr": 1},
    "yaml.unsafe_load": {"stream": "!!python/object/apply:os.system ['touch MARK']"},
    "joblib.load": {"filename": "MARK"},
    "hpcfl.io.atomic.write_file": {"path": "MARK", "content": "1"},
    "hpcfl.cli.main.main": {"arguments": ["init", "MARK"]},
    "reexports.system": {"command": "touch MARK"},
    "reexports.Popen": {"args": ["touch", "MARK"]},
    "reexports.command": {},
    "reexports.save": {"file": "MARK", "arr": 1},
    "reexports.torch": {},
    "program.__main__.made": {},
}
JOB = {
    "task": "digits",
    "data": {"clients": 4},
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedavg"},
    "local": {"lr": 0.1, "batch_size": 16},
    "rounds": 1,
}


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """A file that nothing must make, and modules of the user's that have more than one thinks."""
    path = tmp_path / "executed"
    Path(f"{path}.py").write_text(f"open({str(path)!r}, 'w')")
    (tmp_path / "reexports.py").write_text(
        "import os\nimport torch\nfrom functools import partial\nfrom os import system\n"
        "from subprocess import Popen\n\nfrom numpy import save\n\n"
        f"command = partial(os.system, 'touch {path}')\n"
    )
    (tmp_path / "program").mkdir()
    (tmp_path / "program/__init__.py").touch()
    (tmp_path / "program/__main__.py").write_text(f"open({str(path)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reexports", raising=False)
    yield path
    assert [*tmp_path.glob("executed*")] == [Path(f"{path}.py")]


def job_of(key, path, mark):
    text = yaml.safe_dump(KEYS[key](path, PATHS[path])).replace("MARK", str(mark))
    part = yaml.safe_load(text)
    return JOB | {
        name: {**JOB.get(name, {}), **own} if isinstance(own, dict) else own
        for name, own in part.items()
    }


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_refused(mark, key, path):
    with pytest.raises(JobError) as caught:
        package.check(job_of(key, path, mark), load=True)
    assert path in str(caught.value)
    assert "expected" in str(caught.value)


def test_an_optimizer_of_the_job_makes_no_other(mark):
    own = {"of": "subprocess.Popen", "keys": {"args": ["touch", str(mark)]}}
    job = job_of("optimizer", "subprocess.Popen", mark)
    job["local"]["optimizer"] |= {"of": "hpcfl.algorithms.optim.own.Own", "keys": own}
    with pytest.raises(JobError, match=r"found 'subprocess\.Popen', of Python's own library"):
        package.check(job, load=True)


COMMANDS = {
    "cite": ["cite", "JOB"],
    "check": ["check", "JOB", "--data"],
    "plan": ["plan", "JOB"],
    "run": ["run", "JOB", "--out", "OUT"],
    "dry": ["sweep", "SWEEP", "--dry-run"],
    "split": ["data", "export-split", "JOB", "-o", "OUT"],
    "resume": ["resume", "RUN"],
    "copy": ["resume", "RUN", "--out", "OUT"],
    "record": ["run", "RECORD", "--out", "OUT"],
    "check record": ["check", "RECORD"],
}


@pytest.fixture
def forged(tmp_path, mark, hpcfl):
    """Write a job, a sweep of it, and put it into a run and a record, as a stranger may have."""
    clean, bad = tmp_path / "clean.yaml", tmp_path / "job.yaml"
    clean.write_text(yaml.safe_dump(JOB))
    (tmp_path / "sweep.yaml").write_text("job: job.yaml\ngrid: {seed: [0, 1]}\n")
    run, record = tmp_path / "run", tmp_path / "record"
    assert hpcfl("run", clean, "--out", run).code == 0
    assert hpcfl("export", run, "--record", record).code == 0
    resolved = yaml.safe_load((run / "job.yaml").read_text())

    def forge(key):
        job = job_of(key, "subprocess.Popen", mark)
        bad.write_text(yaml.safe_dump(job))
        changed = KEYS[key]("", {}).keys()
        content = yaml.safe_dump(resolved | {section: job[section] for section in changed})
        for folder in (run, record):
            (folder / "job.yaml").write_bytes(add_checksum(content.encode()))
        return {
            "JOB": bad,
            "SWEEP": tmp_path / "sweep.yaml",
            "RUN": run,
            "RECORD": record,
            "OUT": tmp_path / "out",
        }

    return forge


@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_it(forged, refused, command):
    for key in KEYS:
        paths = forged(key)
        assert "subprocess.Popen" in refused(*[paths.get(word, word) for word in COMMANDS[command]])


def test_every_key_of_a_dotted_path_is_known():
    """A new key of this kind must be typed as one, and stand in ``KEYS``."""
    typed, described = set(), set()
    for cls in _below(Section):
        if not cls.__module__.startswith("hpcfl."):
            continue
        for name, hint in get_type_hints(cls, include_extras=True).items():
            if _is_dotted(hint):
                typed.add(f"{cls.__name__}.{name}")
        described |= {
            f"{cls.__name__}.{name}"
            for name, text in _meanings(cls).items()
            if "dotted path" in text
        }
    keys = {
        "Own.of",
        "OwnLoss.of",
        "OwnSchedule.of",
        "Evaluate.metrics",
        "Module.of",
        "Job.callbacks",
    }
    assert typed == keys
    # Sections, whose kind "own" has the path.
    assert described - keys <= {"Job.loss", "Local.optimizer", "Local.step_schedule"}


def _below(cls):
    for one in cls.__subclasses__():
        yield one
        yield from _below(one)


def _is_dotted(hint):
    return "dotted path" in getattr(hint, "__metadata__", ()) or any(
        _is_dotted(part) for part in get_args(hint) if not isinstance(part, str)
    )


def test_modules_are_imported_by_name_in_one_place():
    """Elsewhere the name is a constant of the program, or that of a class in a table."""
    root = Path(package.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", ""))
        in ("import_module", "__import__")
        and not isinstance(node.args[0], ast.Constant)
        and not (isinstance(node.args[0], ast.Name) and node.args[0].id.isupper())
    }
    assert found == {"__init__.py", "io/lazy_classes.py", "user_code/find_object.py"}


class TestPackages:
    """Packages that were installed: of a stranger's, of one that extends hpcfl, in place."""

    @pytest.fixture
    def install(self, tmp_path, monkeypatch):
        def make(name, *, requires="", points="", folder="site-packages", checkout=False):
            place = tmp_path / folder
            info = place / f"{name}{'.egg-info' if checkout else '-1.dist-info'}"
            info.mkdir(parents=True)
            (place / f"{name}.py").write_text("def loss(outputs, labels):\n    return outputs\n")
            (info / ("PKG-INFO" if checkout else "METADATA")).write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
                + (f"Requires-Dist: {requires}\n" if requires else "")
            )
            (info / ("SOURCES.txt" if checkout else "RECORD")).write_text(
                f"{name}.py" + ("\n" if checkout else ",,\n")
            )
            if points:
                (info / "entry_points.txt").write_text(points)
            monkeypatch.syspath_prepend(place)

        return make

    @pytest.mark.parametrize("folder", ["site-packages", "target"])  # of pip install --target
    def test_a_strangers_is_refused(self, install, folder):
        install(name := f"losses_in_{folder.replace('-', '_')}", folder=folder)
        with pytest.raises(JobError, match=f"of the installed package {name}; expected"):
            load({**JOB, "loss": f"{name}.loss"})
        assert name not in sys.modules

    @pytest.mark.parametrize(
        "how",
        [
            {"requires": "hpcfl>=0.2"},
            {"requires": "hpcfl"},
            {"points": "[hpcfl.algorithm]\nown = own_losses:Own\n"},
            {"folder": "src", "checkout": True},
        ],
    )
    def test_ones_own_is_taken(self, install, how):
        install(name := f"own_losses_{len(str(how))}", **how)
        assert load({**JOB, "loss": f"{name}.loss"}).job.loss.of == f"{name}.loss"

    def test_a_name_that_only_begins_so_is_not_hpcfl(self, install):
        install("hpcfl_like", requires="hpcfl-tools")
        with pytest.raises(JobError, match="of the installed package hpcfl_like"):
            load({**JOB, "loss": "hpcfl_like.loss"})


def test_a_class_has_the_base_and_comes_from_where_the_key_says():
    accepts = Accepts(expected="an error", base=Exception, packages=("pydantic",))
    own = type("Own", (Exception,), {"__module__": "__main__"})
    accepts.require("a", own)
    for found in (
        OSError,
        dict,
        type("Other", (Exception,), {"__module__": "numpy.linalg"}),
        own(),
    ):
        with pytest.raises(JobError, match="expected an error"):
            accepts.require("a", found)


def test_what_is_called_is_ones_own():
    accepts = Accepts(expected="a function", base=Exception, functions=True)
    called = type("Called", (), {"__module__": "__main__", "__call__": print})
    for found in (called, called(), test_what_is_called_is_ones_own):
        accepts.require("a", found)
    for found in (print, partial(print), type("Plain", (), {"__module__": "__main__"}), 3):
        with pytest.raises(JobError, match="expected a function"):
            accepts.require("a", found)


def test_what_a_run_keeps_is_of_the_kind_that_the_key_takes():
    accepts = Accepts(expected="an error", base=Exception)
    accepts.require_kind("a", OSError)
    for found in (dict, OSError(), print):
        with pytest.raises(JobError, match="expected an error"):
            accepts.require_kind("a", found)
