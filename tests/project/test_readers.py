"""What reads runs, or lists names, loads no training: no torch, method, model or data set."""

import subprocess
import sys
from pathlib import Path

import pytest

import hpcfl

ROOT = Path(__file__).parents[2]
TRAINING = ("algorithms.", "data", "engine", "evaluation", "job.", "local", "models", "setup")
PACKAGES = ("torch", "matplotlib", "pandas")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a finished run."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return hpcfl.run("quickstart", {"rounds": 2, "algorithm.name": "fedavg"}, out=out).directory


def loaded(code):
    """The modules of training, and the packages, that a fresh process has loaded at its end."""
    listed = f"import sys; {code}; print(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listed], capture_output=True, text=True, cwd=ROOT, check=True
    )
    modules = done.stdout.splitlines()[-1].split()
    training = tuple(f"hpcfl.{name}" for name in TRAINING)
    return {name for name in modules if name in PACKAGES or name.startswith(training)}


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "RUN"),
        ("report", "RUN", "--layout", "paper", "--format", "csv"),
        ("report", "RUN", "--chosen"),
        ("status", "RUN"),
        ("cite", "RUN"),
        ("list", "algorithms"),
        ("sweep", "jobs/sweeps/quickstart.yaml", "--where"),
    ],
    ids=" ".join,
)
def test_a_command_that_trains_nothing(run, arguments):
    words = [str(run) if word == "RUN" else word for word in arguments]
    assert loaded(f"from hpcfl.cli.main import main; assert main({words}) == 0") == set()


def test_a_plot_loads_matplotlib_alone(run, tmp_path):
    words = ["report", str(run), "--plot", str(tmp_path / "x.pdf")]
    found = loaded(f"from hpcfl.cli.main import main; assert main({words}) == 0")
    assert found == {"matplotlib"}


@pytest.mark.parametrize("function", ["read_runs", "read_log"])
def test_a_data_frame_loads_pandas_alone(run, function):
    assert loaded(f"import hpcfl; hpcfl.{function}({str(run)!r})") == {"pandas"}
