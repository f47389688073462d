"""hpcfl works without the packages of its extras; what needs one says which in a line."""

import subprocess
import sys
from pathlib import Path

import pytest

import hpcfl

ROOT = Path(__file__).parents[2]
HIDDEN = ("matplotlib", "PIL", "shtab")
MAIN = "from hpcfl.cli.main import main; sys.exit(main({}))"


def without(code):
    """A process in which none of the packages can be imported."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN}))"
    words = [sys.executable, "-c", f"{hide}; {code}"]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a finished run, and of its sweep."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return hpcfl.run("quickstart", {"rounds": 2}, out=out).directory


@pytest.mark.parametrize(
    "command",
    [
        "run quickstart rounds=2 --out NEW",
        "check quickstart --data",
        "data show quickstart",
        "report RUN",
        "status RUN",
        "cite RUN",
        "export RUN --record NEW",
        "list data",
        "list image_folder",
        "sweep jobs/sweeps/quickstart.yaml --where",
    ],
)
def test_a_command_that_needs_none(run, tmp_path, command):
    words = command.replace("RUN", str(run)).replace("NEW", str(tmp_path / "new")).split()
    done = without(MAIN.format(words))
    assert done.returncode == 0, done.stderr


def test_python_needs_none(run):
    code = f"import hpcfl; hpcfl.read_runs({str(run)!r}); hpcfl.report_runs([{str(run)!r}])"
    done = without(code)
    assert done.returncode == 0, done.stderr


def test_a_sweep_ends_without_its_plot(tmp_path):
    sweep = tmp_path / "two.yaml"
    sweep.write_text("job: quickstart\nset: {rounds: 1}\ngrid: {seed: [0, 1]}\n")
    done = without(MAIN.format(["sweep", str(sweep), "--out", str(tmp_path / "two")]))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("no plot: ")]
    assert line.endswith("; pip install 'hpcfl[plot]'")


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("report RUN --plot NEW.png", "plot"),
        ("data show quickstart --plot NEW.png", "plot"),
        ("data prepare image_folder --root NEW", "images"),
        ("data prepare tiny_imagenet --root NEW", "images"),
        ("--print-completion bash", "complete"),
    ],
)
def test_a_use_of_one_is_a_line(run, tmp_path, command, extra):
    words = command.replace("RUN", str(run)).replace("NEW", str(tmp_path / "new")).split()
    done = without(MAIN.format(words))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("JobError: ")
    assert line.endswith(f"which is not installed; pip install 'hpcfl[{extra}]'")
