"""Taken up again on other numbers of ranks, longer, in a copy, at an older checkpoint."""

import shutil

import pytest

from hpcfl.checkpoint import committed, rounds
from hpcfl.store.rows import Table
from tests.parallel import background
from tests.parallel.background import Going, finish, write
from tests.parallel.outcome import outcome

NAMES = ("fedhbm", "localghb")


def done(*args):
    ended = finish(*args)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every job to 20 rounds on 2 ranks, and to 30 on one: NAME-20 and NAME-30."""
    folder = tmp_path_factory.mktemp("runs")
    for name in NAMES:
        for ranks, count in ((2, 20), (1, 30)):
            job = write(folder, f"{name}-{count}", algorithm={"name": name}, rounds=count)
            done(ranks, "run", job, "--out", folder / f"{name}-{count}")
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


@pytest.mark.parametrize(("name", "ranks"), [("fedhbm", 2), ("fedhbm", 3), ("localghb", 1)])
def test_longer_in_a_copy(runs, tmp_path, name, ranks):
    """From the end on, and once more from the copy's own older checkpoint."""
    copy = tmp_path / "copy"
    done(ranks, "resume", runs / f"{name}-20", "rounds=30", "checkpoint.every=7", "--out", copy)
    same(outcome(copy), outcome(runs / f"{name}-30"))
    assert rounds(copy / "checkpoints") == [28, 30]
    done(2, "resume", copy, "--round", "28")
    same(outcome(copy), outcome(runs / f"{name}-30"))
    assert outcome(runs / f"{name}-20").round == 20


def test_longer(short, runs):
    done(3, "resume", short, "rounds=30")
    same(outcome(short), outcome(runs / "fedhbm-30"))


def test_a_branch_of_a_run_that_is_alive(runs, tmp_path):
    live = tmp_path / "live"
    changes = {"rounds": 100_000, "checkpoint": {"every": 4, "keep": 100_000}}
    with Going(2, "run", write(tmp_path, **changes), "--out", live) as going:
        going.wait_until(lambda: background.rounds(live) > 20)
        settings = ("rounds=30", "--round", "16", "--out", tmp_path / "copy")
        done(2, "resume", live, *settings)
        assert going.alive
    assert outcome(tmp_path / "copy").server == outcome(runs / "fedhbm-30").server
    assert outcome(tmp_path / "copy").clients == outcome(runs / "fedhbm-30").clients


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("copy", [False, True])
def test_a_flipped_byte_is_told_once_by_whoever_finds_it(short, tmp_path, ranks, copy):
    """In every row of the segment that rank 1 wrote."""
    newest = committed(short / "checkpoints")[-1]
    table = Table.load(newest.folder, short / "stores")
    (victim,) = (p for p, rank in zip(table.paths, table.owners, strict=True) if rank == 1)
    content = bytearray(victim.read_bytes())
    content[2048:] = bytes(byte ^ 1 for byte in content[2048:])
    victim.write_bytes(content)
    ended = finish(ranks, "resume", short, *(["--out", tmp_path / "copy"] if copy else []))
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"StoreError: {victim}: row ")
    assert line.endswith(f"; the one before: `hpcfl resume {short} --round 16`")
    assert not list(tmp_path.glob("copy*"))


def test_a_refusal_is_told_once(short):
    ended = finish(3, "resume", short, "local.lr=0.5")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("JobError: command line: local.lr: is 0.1 in")
