"""README.md, docs/tutorials and an experiment: their commands print what stands there.

On one rank, also where a page says mpirun: tests/parallel compares numbers of ranks.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from hpcfl import run
from hpcfl.cli.parser import parse
from hpcfl.engine import loop
from hpcfl.tools.sweep.grid import read_sweep
from tests.forked import finish, python
from tests.jobs import miniatures
from tests.project.pages import blocks, commands, section
from tests.tools.points import run_points

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
HOME = (ROOT / "docs/index.md").read_text().partition("```{toctree}")[0]
FIRST_RUN = (ROOT / "docs/tutorials/first_run.md").read_text()
QUADRATICS = (ROOT / "docs/tutorials/quadratics.md").read_text()
NOTEBOOK = (ROOT / "docs/tutorials/own_model_and_data.md").read_text()
PAPER = (ROOT / "docs/tutorials/sweep_to_paper.md").read_text()
CLUSTER = (ROOT / "docs/tutorials/cluster_run.md").read_text()
FACTOR = (ROOT / "docs/explanation/scaffold_factor.md").read_text()
EVALUATION = (ROOT / "docs/howto/evaluation.md").read_text()
REPORTS = (ROOT / "docs/howto/reports.md").read_text()
SWEEPS = (ROOT / "docs/howto/sweeps.md").read_text()
INLINE = re.compile(r"`(hpcfl (?:run|status) [^`]+)`")
INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)
CAPTION = re.compile(r"(\+-|best): ")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
LAUNCHER = re.compile(r"^(?:PYTHONPATH=\. )?(?:mpirun -n \d+ )?")
PACE = re.compile(r"\S+ rounds/s +eta \S+")  # another one each time


def parts(line):
    """The texts and the numbers of a line that every machine prints alike."""
    if line.startswith("|"):
        line = line.rpartition("|")[0].rpartition("|")[0]  # the last column is the wall time
    line = " ".join(PACE.sub("", line).split())
    return NUMBER.split(line), [float(number) for number in NUMBER.findall(line)]


def prints(expected, lines):
    """Whether the line is among these, numbers up to 2 %: processors round differently."""
    texts, numbers = parts(expected)
    return any(
        texts == other and numbers == pytest.approx(found, rel=0.02, abs=1e-12)
        for other, found in map(parts, lines)
    )


def absent(expected, lines):
    """Those of a page's lines that a command did not print, but for borders and dots."""
    return [line for line in expected if line[:2] not in ("+-", "..") and not prints(line, lines)]


@pytest.mark.parametrize(
    "other",
    [
        "run round 60/100   7.5 rounds/s  eta 0:00:05  loss 0.51",
        "run round 50/100   7.5 rounds/s  eta 0:00:05  loss 0.53",
        "run round 50/100   7.5 rounds/s  eta 0:00:05  test_loss 0.5",
    ],
)
def test_another_number_or_word_is_not_what_the_page_says(other):
    line = "run round 50/100   9.5 rounds/s  eta 0:00:04  loss 0.5"
    assert not absent(["...", line], ["", "run round 50/100 12 rounds/s eta 0:01:00 loss 0.501"])
    assert absent(["...", line], [other]) == [line]
    assert not absent(["+--+", "| a | 9 kB | 0.8 s |"], ["| a | 9 kB | 0:00:01 |"])
    assert absent(["| a | 9 kB | 0.8 s |"], ["| a | 8 kB | 0.8 s |"])


@pytest.fixture
def shell(tmp_path, monkeypatch, own_process, hpcfl):
    """Run one of a page's commands of hpcfl: what it prints."""
    for name in ("jobs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)

    def run(command, code=0):
        program, *words = shlex.split(LAUNCHER.sub("", command))
        assert program == "hpcfl", command
        files = ((word, sorted(map(str, Path().glob(word)))) for word in words)
        done = hpcfl(*(name for word, found in files for name in ("*" in word and found) or [word]))
        assert done.code == code, (command, done.err)
        return done.out + done.err

    return run


def test_the_readme_shows_what_the_first_run_shows():
    """So what is tested there holds here, too."""
    told = {block for _, block in blocks(FIRST_RUN)}
    for language, block in blocks(README):
        assert block in told or (not language and block.startswith("$ "))
    assert set(map(repr, commands(README))) < set(map(repr, commands(FIRST_RUN)))


@pytest.mark.slow
def test_the_home_page(shell, tmp_path, monkeypatch):
    (text,) = (block for language, block in blocks(HOME) if language == "python")
    (tmp_path / "clipped.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    ((command, printed),) = commands(HOME)
    assert not absent(printed, shell(command))


def test_the_job_of_the_first_run_is_the_one_that_it_names():
    ((_, shown),) = [block for block in blocks(FIRST_RUN) if block[0]]
    job = (ROOT / "jobs/cifar10/fedhbm_noniid.yaml").read_text()
    assert yaml.safe_load(shown) == yaml.safe_load(job)
    uncommented = re.sub(r" +#.*", "", shown)
    assert job.endswith(uncommented)


@pytest.mark.slow
def test_the_first_run(shell):
    given = list(commands(FIRST_RUN))
    assert len(given) == 4
    start = given[0][0]
    alone, status = INLINE.findall(FIRST_RUN)
    assert alone == start.removeprefix("mpirun -n 2 ") + " --out runs/alone"  # so it is played here
    for command, printed in given:
        if command.startswith("hpcfl resume"):
            compare_quickstart(shell)
        lines = shell(command, code=2 if printed[0].startswith("JobError: ") else 0)
        # Which ranks there are, and where, is another line on one rank.
        where = [line for line in printed if "rank(s) by mpi" in line or line.startswith("2 ranks")]
        assert len(where) == (2 if command == start else 0)
        assert not absent([line for line in printed if line not in where], lines), command
        for line in where[:1]:
            method = line.partition("2 rank(s)")[0]
            assert prints(method, [other.partition("1 rank(s)")[0] for other in lines])
    assert any(line.endswith(": fedhbm, finished") for line in shell(status))


def compare_quickstart(shell):
    """Compare the page's table with the runs of `make quickstart`, of which one was just played."""
    assert "make quickstart" in INDENTED.findall(FIRST_RUN)
    makefile = (ROOT / "Makefile").read_text()
    runs = re.search(r"^RUNS := (.*)$", makefile, re.MULTILINE)[1]
    assert runs == "runs/quickstart-fedavg runs/quickstart-fedhbm"
    assert "hpcfl run jobs/quickstart.yaml" in makefile
    shell("hpcfl run jobs/quickstart.yaml 'algorithm={name: fedavg}' --out runs/quickstart-fedavg")
    shutil.copytree("runs/quickstart", "runs/quickstart-fedhbm")
    table = next(block for _, block in blocks(FIRST_RUN) if block.startswith("+-"))
    assert "hpcfl report $(RUNS) --plot\n" in makefile
    assert not absent(table.splitlines(), shell(f"hpcfl report {runs} --plot"))
    assert Path("runs/report.png").stat().st_size


@pytest.mark.slow
def test_the_quadratics(shell):
    (loop, _), (report, table) = commands(QUADRATICS)
    name, values, body = re.fullmatch(r"for (\w+) in (.+); do (.+); done", loop).groups()
    for value in values.split():
        shell(body.replace(f"${name}", value))
    assert len(table) == 9
    assert not absent(table, shell(report))
    assert Path("runs/quadratics.png").stat().st_size

    drift, sweep, prepare, concrete = INDENTED.findall(QUADRATICS)
    script, *words = shlex.split(drift)[1:]
    command = [sys.executable, ROOT / script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path("drift.png").stat().st_size
    assert done.stdout.splitlines()[1].startswith("scaffold ")
    assert len(shell(f"{sweep} --dry-run")) > 20  # each a process: seconds
    assert prepare == "hpcfl data prepare concrete --root data"  # from the network
    assert any(line.startswith("| scaffold ") for line in shell(f"{concrete} --dry-run"))


@pytest.mark.slow
def test_own_model_and_data(shell):
    """The cells as one script; the commands in another process, which has none of its classes."""
    cells = [block for language, block in blocks(NOTEBOOK) if language == "python"]
    Path("script.py").write_text("\n\n".join(cells))
    ended = python(1, "script.py")
    assert ended.returncode == 0, ended.stderr
    scores = dict(line.split(": ") for line in ended.stdout.splitlines())
    assert float(scores["clipped"]) > float(scores["fedavg"]) + 0.02
    assert scores["right"] == scores["clipped"]
    assert Path("runs/clipped.png").stat().st_size
    given = [command for command, _ in commands(NOTEBOOK)]
    assert len(given) == 3
    for command in given:
        shell(command)
    assert Path("net.safetensors").stat().st_size
    assert Path("runs/both.png").stat().st_size


@pytest.mark.slow
def test_from_a_sweep_to_the_paper(shell):
    """The sweeps find their runs finished, which are made in this process: it has torch already."""
    yaml_block, *manuscript = (block for language, block in blocks(PAPER) if language)
    assert yaml.safe_load(yaml_block) == yaml.safe_load(
        (ROOT / "jobs/sweeps/quickstart.yaml").read_text()
    )
    Path("DATA").mkdir()
    miniatures.cifar10(Path("DATA"), per_file=40)  # two examples a client
    played = []
    for command, printed in commands(PAPER):
        command, _, target = command.partition(" > ")
        if command.startswith("hpcfl sweep") and "--dry-run" not in command:
            play_points(command)
        lines = shell(command)
        if target:
            Path(target).write_text("\n".join(lines))
        missing = absent(printed, lines)
        if "runs/rehearsal" in command:  # ours are of other images
            missing = [line for line in missing if published(line) not in map(published, lines)]
        assert not missing, command
        played.append(command.split()[1])
    compare_sweep_sample(shell("hpcfl report runs/digits --plot sample.png"))
    assert {"sweep", "status", "report", "cite", "plan"} == set(played)
    assert not absent(manuscript[0].splitlines(), Path("table.tex").read_text().splitlines())
    assert "{karimireddy2020," in Path("references.bib").read_text()
    assert Path("figure.pdf").read_bytes().startswith(b"%PDF")
    assert Path("figure.png").stat().st_size


def test_a_factor_in_scaffolds_server_step(tmp_path, monkeypatch, own_process):
    """The class of the page is SCAFFOLD where the factor is 1, and only there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (block,) = [block for language, block in blocks(FACTOR) if language == "python"]
    Path("scaled_scaffold.py").write_text(block)
    scaled = "scaled_scaffold.ScaledScaffold, scale:"
    one, same, other = (
        run("quickstart", ["rounds=3", f"algorithm={{name: {name}}}"], out=f"{k}").x
        for k, name in enumerate(("scaffold", f"{scaled} 1", f"{scaled} 2"))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_picture_of_how_fair_a_model_is(shell):
    """Of clients.csv, in another process, which takes pandas and matplotlib."""
    page = section(EVALUATION, "Each client")
    for command, _ in commands(page):
        shell(command)
    (block,) = [block for language, block in blocks(page) if language == "python"]
    Path("script.py").write_text(block)
    ended = python(1, "script.py")
    assert ended.returncode == 0, ended.stderr
    assert Path("fairness.png").stat().st_size


def test_the_test_set_is_no_client_in_the_picture(tmp_path, monkeypatch):
    """Its line in clients.csv, of a metric of several numbers, has client -1."""
    (block,) = [
        text
        for language, text in blocks(section(EVALUATION, "Each client"))
        if language == "python"
    ]
    (tmp_path / "runs/fair").mkdir(parents=True)
    (tmp_path / "runs/fair/clients.csv").write_text(
        "round,client,model,data,examples,loss,accuracy,per_class.0\n"
        "1,0,global,holdout,4,1.0,0.5,\n1,1,global,holdout,4,1.0,0.25,0.5\n"
        "1,-1,global,test,40,1.0,0.99,0.9\n"
    )
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(block[block.index("import pandas") : block.index("plt.plot")], found)  # noqa: S102
    assert found["ascending"].tolist() == [0.25, 0.5]


def compare_sweep_sample(lines):
    """Compare the table of the page on sweeps, and its captions, with a report of the same runs."""
    sample = next(block for _, block in blocks(SWEEPS) if block.startswith("+-")).splitlines()
    assert not absent(sample, lines)
    captions, shown = ([line for line in part if CAPTION.match(line)] for part in (lines, sample))
    assert captions == shown


def play_points(command):
    """Run each point of a sweep in this process."""
    options = parse(shlex.split(command)[1:])
    sweep = read_sweep(options.sweep, options.overrides)
    run_points(sweep.chosen(options.points, options.only), options.out)


def published(line):
    """The method and the published number of a row of the table."""
    cells = [cell.strip() for cell in line.split("|")]
    return (cells[1], cells[-2]) if line.startswith("|") and "+-" in line else None


def die_after(rounds):
    """Let this process be killed after so many rounds."""
    run_round = loop.run_round

    def killed(run, server, t, requests):
        if t == rounds:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_round(run, server, t, requests)

    loop.run_round = killed


@pytest.mark.slow
def test_a_long_run_on_a_cluster(shell):
    """All but what needs Slurm, which tests/slurm/test_tutorial.py runs."""
    for command, printed in commands(CLUSTER):
        program = LAUNCHER.sub("", command).split()[0]
        if program == "cmp":
            _, *files = command.split()
            first, second = (Path(file).read_bytes() for file in files)
            assert first == second
        elif program == "hpcfl":
            if "--continue" in command:
                words = shlex.split(LAUNCHER.sub("", command))[1:]
                assert finish(1, *words, prepare=partial(die_after, 130)).returncode == -9
                assert any("not running" in line for line in shell("hpcfl status runs/long"))
            lines = [line.replace(str(Path.cwd()), "...") for line in shell(command)]
            assert not absent(printed, lines), command
    log = Path("runs/long/log.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in log] == list(range(301))
    assert len(Path("runs/long/history.jsonl").read_text().splitlines()) == 3
    assert Path("lower.safetensors").stat().st_size
    assert Path("curve.png").stat().st_size


def test_a_table_and_a_figure_of_ones_own(shell):
    """The Python of the page on reports, without the table that needs another package."""
    for name in ("fedavg", "scaffold", "fedhbm"):
        for seed in (0, 1):
            algorithm = f"'algorithm={{name: {name}}}' seed={seed}"
            shell(f"hpcfl run quickstart rounds=20 {algorithm} --out runs/digits/{name}{seed}")
    page = section(REPORTS, "Columns, names and plots of your own")
    script = "\n".join(block for language, block in blocks(page) if language == "python")
    Path("script.py").write_text(script.replace("to_latex()", "to_string()"))
    ended = python(1, "script.py")
    assert ended.returncode == 0, ended.stderr
    assert "FedHBM (ours)" in ended.stdout
    assert Path("figure.pdf").read_bytes().startswith(b"%PDF")
