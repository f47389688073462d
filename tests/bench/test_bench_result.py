"""What a bench hands back: medians and quartiles by hand, JSON, a plot; the sides' work."""

import json
import sys

import pytest
import torch

from hpcfl.bench import gpu, reduce, round, scaling
from hpcfl.bench.costs import report as told_costs
from hpcfl.bench.peers import WORKS, bench_peers, report
from hpcfl.bench.reduce import FLOAT, measure
from hpcfl.bench.result import Measurement, Result, column
from hpcfl.bench.scaling import bench_scaling
from hpcfl.cli.main import main
from hpcfl.cli.parser import parser
from hpcfl.comm.solo import Solo
from hpcfl.errors import JobError
from hpcfl.plan import CostModel
from tests.long_form import LONG
from tests.parallel.harness import find_mpirun

pytestmark = pytest.mark.slow

KEYS = ("processor", "simd", "gpu", "python", "torch", "numpy", "hpcfl", "git")
A = Measurement("4 rows", "a", "s", [1.0, 2.0, 3.0, 4.0, 5.0])
B = Measurement("4 rows", "b", "s", [2.0, 2.0, 2.0, 16.0, 10.0])


def test_middle_and_spread_by_hand():
    assert A.median == 3
    assert A.quartiles == (2, 4)
    assert Measurement("x", "one turn", "s", [7.0]).quartiles == (7, 7)


def test_a_ratio_is_one_of_turns_and_not_of_medians():
    assert A.over(B) == 0.5  # of 1/2, 1, 3/2, 1/4, 1/2; the medians' is 3/2


def test_everything_is_in_the_file(tmp_path):
    result = Result("bench x", "a table", [A, B], {"ranks": 2})
    result.write(tmp_path / "new" / "x.json")
    tree = json.loads((tmp_path / "new" / "x.json").read_text())
    assert tree["command"] == "bench x"
    assert tree["about"] == {"ranks": 2}
    assert {"date", "processor", "cores", "threads", "torch", "git"} <= set(tree["machine"])
    assert [f["values"] for f in tree["figures"]] == [A.values, B.values]
    assert tree["figures"][0]["quartiles"] == [2, 4]
    assert "a table" in str(result)
    assert "torch" in str(result)
    assert f"({torch.backends.cpu.get_cpu_capability()}), " in str(result)


def test_no_line_is_wider_than_a_terminal(monkeypatch):
    """Whatever a job, a processor or an MPI library is called."""
    long = "a job of a sweep with a long name " * 2
    slow = Measurement(long, "blocks of 1000", "s", [12345.678])
    monkeypatch.setattr("hpcfl.bench.result.versions", lambda device: dict.fromkeys(KEYS, long))
    costs = CostModel(
        origin=long * 3, of=long * 3, step_s=1e-9, visit_s=1e-9, round_s=1e-9, convert_s=1e-9,
        restore_s=1e-9, test_s=1e-9,
    )  # fmt: skip
    tables = (
        round.report([round.Comparison(long, [100_000], slow, slow, 1e-10)]),
        told_costs(costs),
        reduce.report([Measurement("25000000", FLOAT, "s", [1234.0])]),
    )
    for table in tables:
        lines = str(Result("bench x", table, [slow])).splitlines()
        assert max(map(len, lines)) <= 100, lines


def test_a_long_name_has_a_line_of_its_own():
    assert column("short", 7) == "short  "
    assert column("as long", 7) == "as long"
    assert column("too long", 7) == "too long\n       "


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match="cannot be written"):
        Result("bench x", "", [A]).write(tmp_path / "file" / "x.json")


def test_the_mean_of_one_rank_is_refused(refused, tmp_path):
    said = refused("bench", "reduce", "--json", tmp_path / "x.json")
    assert "bench reduce: found 1 rank, expected 2 or more" in said
    assert said.endswith("; say mpirun -n 2 hpcfl bench reduce")
    assert not (tmp_path / "x.json").exists()


def test_every_side_of_the_mean_is_measured(tmp_path, determinism, monkeypatch):
    """Every side has as many turns as asked for, and each ratio is told."""
    monkeypatch.setattr("hpcfl.bench.reduce.LENET_ROUNDS", 1)
    found = measure(Solo(), [1000], turns=3)
    assert found is not None
    sides = [f.side for f in found.figures if f.subject == "1000"]
    assert sides[0] == FLOAT
    assert len(sides) == 5
    assert all(len(f.values) == 3 for f in found.figures)
    assert 0 < found.about["share_of_lenet_round"] < 1
    found.plot(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 0


def test_a_python_without_the_peer(capsys):
    assert main(["bench", "peers", "--python", sys.executable]) == 2
    said = capsys.readouterr().err
    assert "no pfl (ModuleNotFoundError" in said
    assert 'pip install "torch==2.13.0" "pfl==0.6.0"' in said
    with pytest.raises(JobError, match="cannot be started"):
        bench_peers("nowhere/python")


@pytest.mark.parametrize("model", WORKS)
def test_a_peer_s_works_can_be_named(model):
    assert parser().parse_args(["bench", "peers", "--model", model]).model == model


def test_ratios_are_to_the_peer_in_the_first_precision():
    pfl = Measurement("cnn", "pfl 0.6.0, bf16", "CPU s", [3.0])
    ours = Measurement("cnn", "hpcfl, bf16", "CPU s", [2.0])
    lines = report([ours, pfl], users=50).splitlines()
    assert lines[0].endswith("of pfl in bf16")
    assert [line.split()[-1] for line in lines[1:3]] == ["1.500x", "1.000x"]


def test_tables_say_what_the_time_of_the_bare_loop_leaves_out():
    sides = [Measurement("cnn", side, "s", [2.0]) for side in ("sequential", "bare loop", "pfl")]
    for table in (report(sides, users=50), gpu.report(sides), scaling.report(sides[:2])):
        assert table.endswith("\n(bare loop: without the time in which its batches are made)")


def test_the_speed_up_names_what_it_is_over():
    figures = [
        Measurement(f"{ranks} at once", side, "s", [8 / ranks])
        for ranks in (2, 4)
        for side in ("ranks", "bare")
    ]
    header, two, four, _ = scaling.report(figures).splitlines()
    assert " speed-up over 2 at once " in header
    assert (two.split()[-1], four.split()[-1]) == ("1.00x", "2.00x")


TINY = """
task: digits
data: {clients: 10}
cohort: {kind: uniform, size: 2}
algorithm: {name: fedavg}
local: {epochs: 1, batch_size: 16, lr: 0.1}
rounds: 20
"""


def test_two_ranks_against_two_bare_loops(monkeypatch, refused, capsys):
    """All sides play; who waits hears how far they are."""
    find_mpirun()
    monkeypatch.setattr("hpcfl.io.progress.TRACK_S", 0.0)
    monkeypatch.setattr("hpcfl.bench.scaling.LENET", TINY)
    sizes = [1, 2] if LONG else [2]
    found = bench_scaling(sizes, turns=1)
    assert [(f.subject, f.side) for f in found.figures] == [
        (f"{size} at once", side) for size in sizes for side in ("ranks", "bare")
    ]
    assert all(f.values[0] > 0 for f in found.figures)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"bench scaling: rounds: {k} of {4 * len(sizes)}" for k in range(4 * len(sizes))
    ]
    assert "does not divide" in refused("bench", "scaling", "--ranks", 3)


def test_a_side_that_ends_says_why(monkeypatch):
    monkeypatch.setattr("hpcfl.bench.scaling.LENET", "nothing: here")
    with pytest.raises(JobError, match=r"a process ended: .*data\.kind: missing"):
        bench_scaling([1], turns=1)
