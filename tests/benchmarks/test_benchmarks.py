"""Each script of benchmarks/ runs by itself; the bare loop does the engine's work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import executor
import hpcfl
import peers
import reduce
import round
import scale
import scaling
import store
from common import Measurement, take_turns
from hpcfl.errors import HpcflError
from hpcfl.job.load import load
from tests.parallel.harness import find_mpirun

ROOT = Path(__file__).parents[2]
TINY = """
task: digits
data: {clients: 10}
cohort: {kind: uniform, size: 2}
algorithm: {name: fedavg}
local: {epochs: 1, batch_size: 16, lr: 0.1}
rounds: 20
"""
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("determinism")]


@pytest.mark.usefixtures("forked_python")
def test_a_script_runs_by_itself(tmp_path):
    """As a program; the other tests call its function."""
    command = [sys.executable, ROOT / "benchmarks/round.py", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "a bare loop of the same SGD steps" in done.stdout


def test_round(job, tmp_path, capsys):
    words = [str(job), "rounds=13", "algorithm={name: fedavg}"]
    file = tmp_path / "x.json"
    assert round.command([*words, "--json", str(file), "--plot", str(tmp_path / "x.png")]) == 0
    sides = [figure["side"] for figure in json.loads(file.read_text())["figures"]]
    assert sides == ["engine", "bare loop"]
    assert (tmp_path / "x.png").stat().st_size
    capsys.readouterr()
    assert round.command([*words, "rounds=2"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("JobError: rounds: found 2, but 12 turns and a warm-up need")


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["local.momentum=0.9", "local.nesterov=true", "local.weight_decay=0.5"],
        ["cohort={kind: bernoulli, p: 0.2}"],  # some rounds are empty
    ],
)
def test_engine_and_bare_loop_end_at_the_same_model(job, tmp_path, overrides, monkeypatch):
    made = load(job, ["algorithm={name: fedavg}", "rounds=9", *overrides])
    assert round.measure(made, tmp_path, 2).gap < 1e-3
    loss = round.LOSSES["cross_entropy"]
    monkeypatch.setattr(round, "LOSSES", {"cross_entropy": lambda o, y: 1.1 * loss(o, y)})
    (tmp_path / "log.jsonl").unlink()
    with pytest.raises(HpcflError, match="engine and bare loop ended a turn"):
        round.measure(made, tmp_path, 2)


def test_executor(job, monkeypatch, capsys):
    monkeypatch.setattr(executor, "SIDE", 64)
    assert executor.command([str(job), "--sizes", "2", "3"]) == 0
    assert "blocks of 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], 'pip install "torch==2.13.0" "pfl==0.6.0"'),
        (["--model", "mlp"], 'pip install "jax==0.10.2" "fedjax==0.0.17"'),
        (["--model", "mlp", "--precision", "bf16"], "found bf16, but mlp runs in float32"),
    ],
)
def test_peers_names_what_is_missing(words, found, capsys):
    assert peers.command(["--python", sys.executable, *words]) == 2
    assert found in capsys.readouterr().err


def test_the_models_beside_fedjax(tmp_path, monkeypatch):
    """Their parameters are counted in ``bench_peers``, too, where FedJAX is installed."""
    monkeypatch.setitem(peers.WORKS, "mlp", peers.BenchWork(2, 3, 2, 2, 0.1))
    job = peers._job(tmp_path, "mlp", peers.WORKS["mlp"]) | {"rounds": 1}
    assert hpcfl.run(job, out=tmp_path / "run").x.numel() == 209662


@pytest.mark.usefixtures("forked_python")
def test_reduce():
    code = (
        "import reduce, sys; reduce.LENET_ROUNDS = 1; reduce.TURNS = 2; sys.exit(reduce.command())"
    )
    path = {"PYTHONPATH": str(ROOT / "benchmarks")}
    command = [find_mpirun(), "-n", "2", "-genv", "PYTHONPATH", path["PYTHONPATH"]]
    command += [sys.executable, "-c", code, "--sizes", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "fastreduction, 5 client(s)" in done.stdout
    assert reduce.command([]) == 2


@pytest.mark.usefixtures("forked_python")
def test_scaling(monkeypatch, capsys):
    find_mpirun()
    monkeypatch.setattr(scaling, "LENET", TINY)
    monkeypatch.setattr(scaling, "TURNS", 1)
    assert scaling.command(["--ranks", "2"]) == 0
    assert "2 at once" in capsys.readouterr().out


def test_store(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(store, "LENET", TINY)
    monkeypatch.setattr(store, "TURNS", 1)
    assert store.command(["--dir", str(tmp_path), "--gib", "0.001"]) == 0
    assert "fedhbm, cache_gib 1" in capsys.readouterr().out


def test_scale(tmp_path, capsys):
    """Over fewer rounds than docs/scale.md draws them."""
    jobs = yaml.safe_load((ROOT / "benchmarks/scale.yaml").read_text())
    file = tmp_path / "scale.yaml"
    file.write_text(yaml.safe_dump({name: {**job, "rounds": 2} for name, job in jobs.items()}))
    plot = tmp_path / "x.png"
    assert scale.command([str(file), "--ranks", "8", "--plot", str(plot)]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == set(jobs)
    assert plot.stat().st_size


def test_a_ratio_is_one_of_turns_and_not_of_medians():
    a = Measurement("4 rows", "a", "s", [1.0, 2.0, 3.0, 4.0, 5.0])
    b = Measurement("4 rows", "b", "s", [2.0, 2.0, 2.0, 16.0, 10.0])
    assert (a.median, a.quartiles) == (3, (2, 4))
    assert a.over(b) == 0.5  # of 1/2, 1, 3/2, 1/4, 1/2; the medians' is 3/2


def test_every_side_runs_once_a_turn_and_warmup_turns_do_not_count():
    calls = []

    def side(name):
        return lambda: calls.append(name) or float(len(calls))

    assert take_turns({"a": side("a"), "b": side("b")}, 2, "x", warmup=2) == {
        "a": [5.0, 7.0],
        "b": [6.0, 8.0],
    }
    assert calls == ["a", "b"] * 4
