"""docs/extending.md: its files are written out, and its commands say what it prints."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcfl as api
from tests.parallel.harness import environment, find_mpirun
from tests.project.pages import blocks, commands

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()
FILES = [block for kind, block in blocks(PAGE) if kind and block.startswith("# ")]


def stands_in(line, text):
    """Whether a printed line is there, with anything for its dots."""
    return re.search(".*".join(map(re.escape, line.split("..."))), text)


@pytest.fixture
def folder(tmp_path, monkeypatch, own_process):
    """The page's files, in the current directory, where Python finds them."""
    for text in FILES:
        name = text.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def shell(folder, hpcfl, forked_python):
    """Run a command of the page: its exit code and all that it said."""
    programs = {
        "python": [sys.executable],
        "mpirun": [find_mpirun()],
        "hpcfl": [sys.executable, "-m", "hpcfl"],
    }
    path = os.pathsep.join([str(folder), str(ROOT)])

    def run(command):
        words = shlex.split(command)
        if words[0] == "hpcfl":  # in this process, which is quicker
            done = hpcfl(*words[1:])
            return done.code, "\n".join([*done.out, *done.err])
        started = [new for word in words for new in programs.get(word, [word])]
        done = subprocess.run(
            started, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_the_page_runs_as_printed(folder, shell):
    given = list(commands(PAGE))
    assert given.pop(0) == ("export PYTHONPATH=.", [])
    assert len(given) == 27
    for command, said in given:
        code, text = shell(command)
        refused = any(line.startswith("JobError: ") for line in said)
        assert code == (2 if refused else 0), (command, text)
        for line in said:
            assert stands_in(line, text), (command, line, text)
    for run in ("fedvarp", "synthetic", "perceptron"):
        log = (folder / "runs" / run / "log.jsonl").read_text()
        assert float(re.findall(r'"test_accuracy": ([\d.]+)', log)[-1]) > 0.3, run


def models(folder, algorithm, *settings):
    """[clients, P], the clients' own models after ten rounds of the page's fedproto.yaml."""
    out = folder / f"models{len(list(folder.iterdir()))}"
    job = ["rounds=10", "evaluate.personal=false", "precision=float64", *settings]
    api.run("fedproto.yaml", [f"algorithm={algorithm}", *job], out=out)
    files = (api.export(out, folder / "own.npz", client=client) for client in range(10))
    return np.stack([np.load(file)["x"] for (file,) in files])


@pytest.mark.slow
def test_fedproto_in_blocks_and_one_by_one(folder):
    """Batches of 16 leave a rest, which blocks pad."""
    ours = "{name: fedproto.FedProto, lam: 0.1}"
    one, many = (models(folder, ours, f"executor={kind}") for kind in ("sequential", "block"))
    np.testing.assert_allclose(one, many, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_fedproto_without_prototypes_is_local_training(folder):
    alone = models(folder, "{name: fedper, personal: all}")
    without, ours = (models(folder, f"{{name: fedproto.FedProto, lam: {k}}}") for k in (0.0, 0.1))
    np.testing.assert_allclose(without, alone, rtol=0, atol=1e-12)
    assert np.abs(ours - alone).max() > 1e-3
