"""Commands of pages under docs/howto that have no test of their own run as they are printed."""

import re
import shlex
from pathlib import Path

import pytest

from tests.project.pages import blocks, commands, section

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs/howto"


@pytest.fixture
def shell(tmp_path, monkeypatch, own_process, hpcfl):
    """Run a command of hpcfl's beside the jobs, and return what it prints."""
    pytest.importorskip("sklearn", reason="scikit-learn is absent")
    monkeypatch.chdir(tmp_path)
    Path("jobs").symlink_to(ROOT / "jobs")

    def run(command):
        done = hpcfl(*shlex.split(command)[1:])
        assert done.code == 0, (command, done.err)
        return [*done.out, *done.err]

    return run


@pytest.mark.slow
def test_cohorts(shell):
    page = (HOWTO / "cohorts.md").read_text()
    ((command, _),) = commands(section(page, "Which clients take part"))
    assert "power_of_choice" in command
    shell(command)


@pytest.mark.slow
def test_a_diagnostic_of_the_model_alone(shell, monkeypatch):
    page = (HOWTO / "diagnostics.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    Path("oscillation.py").write_text(program)
    monkeypatch.syspath_prepend(".")
    (command,) = [line for line in indented(page) if "oscillation" in line]
    shell(f"{command.removeprefix('PYTHONPATH=. ')} rounds=5")
    log = [line.split(",") for line in Path("runs/cosine/cosine.csv").read_text().splitlines()]
    assert [int(round) for round, _ in log] == [2, 3, 4, 5]
    assert all(-1 <= float(cosine) <= 1 for _, cosine in log)


@pytest.mark.slow
def test_plan(shell):
    page = (HOWTO / "plan.md").read_text()
    for command in re.findall(r"^    (hpcfl .*)$", page.partition("## ")[0], re.MULTILINE):
        shell(command)
    ((command, printed),) = commands(section(page, "Before the data is there"))
    told = list(map(without_memory, shell(command)))
    for line in map(without_memory, printed):
        assert line == "..." or line in told


@pytest.mark.slow
def test_publish(shell, monkeypatch):
    """Commands for a shell are left out: the loop over runs, pip, diff."""
    shell("hpcfl run jobs/quickstart.yaml rounds=2 evaluate.every=1 --out runs/final/one")
    shell("hpcfl export runs/final/one --record study/one")
    page = (HOWTO / "publish.md").read_text()
    made = [line for line in indented(page) if re.match("hpcfl (report|cite) ", line)]
    assert len(made) == 3
    for command in made:
        words, _, file = command.partition(" > ")
        printed = shell(words)
        if file:
            Path(file).write_text("\n".join(printed))
    assert "tabular" in Path("table.tex").read_text()
    assert Path("figure.pdf").stat().st_size
    assert "@" in Path("references.bib").read_text()
    ran, exported, compared = indented(section(page, "What others type"))
    Path("RECORD").symlink_to("study/one")
    shell(ran.replace(" data.root=DATA", ""))
    monkeypatch.syspath_prepend("RECORD/code")
    shell(exported.removeprefix("PYTHONPATH=RECORD/code "))
    _, first, second = compared.split()
    assert Path(first).read_text() == Path(second).read_text()


def without_memory(line):
    """A line without what the program itself takes, which differs between versions."""
    return re.sub(r"--mem=\d+G", "", line)


def indented(page):
    """The lines of code that are indented by four or more."""
    without = page
    for _, block in blocks(page):
        without = without.replace(block, "")
    return re.findall(r"^ {4,}(\S.*)$", without, re.MULTILINE)
