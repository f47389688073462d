"""Where the time went, from logs of all ages."""

import csv
import json
import shutil

import pytest

from hpcfl.runs.log import of_ranks
from hpcfl.runs.log_keys import PHASES
from hpcfl.tools.report import timing
from tests.rundirs import log_of

OLD = {"round": 1, "clients": 2, "wall_s": 1.5, "data_s": 0.5}


def line(round, **parts):
    seconds = {f"{part}_s": float(parts.get(part, 0)) for part in PHASES}
    return {"round": round, "clients": 4, "examples": 30, "wall_s": sum(parts.values()), **seconds}


LOG = [line(1, compute=3, reduce=1), line(2, compute=2, wait=2) | {"imbalance": 1.5}]


def test_shares_are_of_the_whole_time():
    found = timing.shares(LOG)
    assert {part: share for part, share in found.items() if share} == {
        "compute": 5 / 8, "reduce": 1 / 8, "wait": 2 / 8
    }  # fmt: skip
    assert timing.rate(LOG, "examples") == 60 / 8
    assert timing.pace(LOG) == 2 / 8
    assert timing.imbalance(LOG) == 1.5


def test_the_slowest_rank_of_few_and_of_many_ranks():
    few = [of_ranks([1.0, 3.0, 2.0]), of_ranks([1.0, 3.0, 4.0]), {"slowest_rank": 1}]
    assert timing.slowest_rank(few) == (1, 2 / 3)
    assert timing.slowest_rank([OLD, *LOG]) is None


def test_lines_that_do_not_tell_do_not_count():
    assert timing.shares([OLD, *LOG]) == timing.shares(LOG)


@pytest.mark.parametrize("lines", [[], [OLD], [{"round": 1, "wall_s": None}]])
def test_what_nothing_tells(lines):
    assert timing.shares(lines) == {}
    assert timing.rate(lines, "examples") is None
    assert timing.imbalance(lines) is None


def test_a_report_says_where_the_time_went(job, hpcfl, tmp_path):
    """A run of now, and one whose log is of before."""
    for name in ("new", "old"):
        assert hpcfl("run", job, "--out", tmp_path / "runs" / name).code == 0
    log = tmp_path / "runs" / "old" / "log.jsonl"
    keep = ("round", "clients", "wall_s", "train_loss", "test_accuracy")
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    log.write_bytes(log_of({k: e[k] for k in keep if k in e} for e in lines))
    shutil.rmtree(log.parent / "checkpoints")  # whose log it was
    asked = ("report", tmp_path / "runs", "--layout", "time")
    said = hpcfl(*asked).out
    start = next(k for k, text in enumerate(said) if text.startswith("| run"))
    new, old = ([c.strip() for c in said[start + k].strip("|").split("|")] for k in (2, 3))
    assert (new[0], old[0]) == ("new", "old")
    parts = list(map(float, new[2 : 2 + len(PHASES)]))
    assert sum(parts) == pytest.approx(100, abs=0.05 * len(PHASES))
    assert set(old[1 : 3 + len(PHASES)]) == {"-"}
    rows = list(csv.DictReader(hpcfl(*asked, "--format", "csv").out))
    assert sum(float(rows[0][phase]) for phase in PHASES) == pytest.approx(1)
    assert rows[1]["compute"] == ""
    assert "compute" not in hpcfl("report", tmp_path / "runs").text  # unless it is asked for
