"""Taken up again on other numbers of ranks, longer, in a copy, at an older checkpoint."""

import shutil

import pytest
import torch

from hpcfl.job.load import load
from hpcfl.runs.manifest import committed, rounds
from hpcfl.start.components.build import build_components
from hpcfl.store.row_table import Table
from hpcfl.store.segment_file import inspect
from tests.forked import finish
from tests.parallel import background
from tests.parallel.background import DIGITS, Going, write
from tests.parallel.harness import launch, play_all
from tests.parallel.outcome import outcome

NAMES = ("fedhbm", "localghb")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every job to 20 rounds on 2 ranks, and to 30 on one: NAME-20 and NAME-30."""
    folder = tmp_path_factory.mktemp("runs")
    for ranks, count in ((2, 20), (1, 30)):
        job = {**DIGITS, "rounds": count}
        jobs = {f"{n}-{count}": {**job, "algorithm": {"name": n}} for n in NAMES}
        play_all(folder, jobs, ranks)
    return folder


@pytest.fixture
def short(runs, tmp_path):
    """A run of 20 rounds of FedHBM that a test may spoil."""
    return shutil.copytree(runs / "fedhbm-20", tmp_path / "run")


def same(found, whole):
    """But for the scores of the round that was the last before."""
    assert (found.round, found.server, found.clients) == (whole.round, whole.server, whole.clients)
    scores = set(whole.log[-1]) - set(whole.log[0])
    assert scores
    for one, other in zip(found.log, whole.log, strict=True):
        assert {k: v for k, v in one.items() if k not in scores or k in other} == other


def resumed(run, **how):
    return {"job": None, "out": str(run), "stop": 0, "how": how}


def test_longer_and_in_a_copy(runs, short, tmp_path):
    """From the end on, and once more from each copy's own older checkpoint."""
    longer = ["rounds=30", "checkpoint.every=7"]
    copies = {name: tmp_path / name for name in NAMES}
    plan = [resumed(runs / f"{n}-20", overrides=longer, out=str(c)) for n, c in copies.items()]
    launch(tmp_path, [*plan, resumed(short, overrides=["rounds=30"])], 3)
    same(outcome(short), outcome(runs / "fedhbm-30"))
    for name, copy in copies.items():
        same(outcome(copy), outcome(runs / f"{name}-30"))
        assert rounds(copy / "checkpoints") == [28, 30]
        assert outcome(runs / f"{name}-20").round == 20
    launch(tmp_path, [resumed(copy, round=28) for copy in copies.values()], 2)
    for name, copy in copies.items():
        same(outcome(copy), outcome(runs / f"{name}-30"))


def test_a_branch_of_a_run_that_is_alive(runs, tmp_path):
    live = tmp_path / "live"
    changes = {"rounds": 10_000, "checkpoint": {"every": 4, "keep": 10_000}}
    with Going(2, "run", write(tmp_path, **changes), "--out", live) as going:
        going.wait_until(lambda: background.rounds(live) > 20)
        settings = ("rounds=30", "--round", "16", "--out", tmp_path / "copy")
        ended = finish(2, "resume", live, *settings)
        assert ended.returncode == 0, ended.stderr
        assert going.alive
    assert outcome(tmp_path / "copy").server == outcome(runs / "fedhbm-30").server
    assert outcome(tmp_path / "copy").clients == outcome(runs / "fedhbm-30").clients


@pytest.mark.parametrize(("ranks", "copy"), [(2, False), (3, True)])
def test_a_flipped_byte_is_told_once_by_whoever_finds_it(short, tmp_path, ranks, copy):
    """In every row that rank 1 wrote."""
    newest = committed(short / "checkpoints")[-1]
    table = Table.load(newest.folder, short / "stores")
    schema = build_components(
        load(short / "job.yaml"), torch.device("cpu"), resumed=True
    ).training.schema.client_state
    victims = [p for p, rank in zip(table.paths, table.owners, strict=True) if rank == 1]
    for victim in victims:
        start = inspect(victim, schema).offsets[0]
        content = bytearray(victim.read_bytes())
        content[start:] = bytes(byte ^ 1 for byte in content[start:])
        victim.write_bytes(content)
    ended = finish(ranks, "resume", short, *(["--out", tmp_path / "copy"] if copy else []))
    assert ended.returncode == 2
    line = told(ended.stderr)
    assert line.startswith(tuple(f"StoreError: {victim}: row " for victim in victims))
    assert line.endswith(f"; the one before: `hpcfl resume {short} --round 16`")
    assert not list(tmp_path.glob("copy*"))


def test_a_refusal_is_told_once(short):
    ended = finish(2, "resume", short, "local.lr=0.5")
    assert ended.returncode == 2
    assert told(ended.stderr).startswith("JobError: command line: local.lr: is 0.1 in")


def told(stderr):
    assert "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if "Error: " in line]
    return line
