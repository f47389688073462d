"""Where ranks are, and what a person reads of it."""

from pathlib import Path

from hpcfl.comm.solo import Solo
from hpcfl.comm.watched import WatchedComm
from hpcfl.job.load import load
from hpcfl.start import rank_layout
from hpcfl.start.rank_layout import describe, discover_ranks
from tests.seats import gpu, seat

JOB = Path(__file__).parents[2] / "jobs/quickstart.yaml"


def test_ranks_in_words():
    seats = [seat(rank, host) for rank, host in enumerate("aabab")]
    assert describe(seats) == "5 ranks on 2 hosts (a: 3 of them; b: 2 of them), cpu, 1 thread each"
    seats = [gpu(rank, rank % 4, f"n{rank // 4}") for rank in range(24)]
    assert describe(seats) == (
        "24 ranks on 6 hosts (n0: 0-3; n1: 4-7; n2: 8-11; n3: 12-15; ...), cuda, 1 thread each"
    )


def test_this_process_sits_here(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5, 2}, raising=False)
    nodes = {"node0": "0-1,4", "node1": "2-3,5", "node10": "6-7", "node2": ""}
    for name, cores in nodes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cores + "\n")
    monkeypatch.setattr(rank_layout, "_NUMA", tmp_path)
    ranks = discover_ranks(
        load(JOB, ["threads=2", "device=cpu"]), tmp_path, WatchedComm(Solo(), 10.0)
    )
    (own,) = ranks.infos
    assert (own.cores, own.numa, own.threads, own.device) == ([2, 5], [1], 2, "cpu")
    assert (ranks.device.type, ranks.notes) == ("cpu", [])
    assert own.record.keys() == {"host", "local_rank", "device", "threads", "numa", "cores"}
