"""The least memory of a rank by hand; jobs that need more than is free are refused."""

from dataclasses import replace

import pytest
import torch

from hpcfl.io import memory
from hpcfl.job.load import load
from hpcfl.start.checks.disk import simulate_schedule
from hpcfl.start.checks.memory import rank_memory
from hpcfl.start.components.build import build_components
from hpcfl.store import footprint

MODEL = 64  # bytes: 3 x 4 + 4 numbers of float32
EXAMPLES = (40 + 12) * (3 * 8 + 8)  # bytes: of three float64 features and an int64 label


def parts(job, *overrides):
    return build_components(load(job, list(overrides)), torch.device("cpu"))


def needed(components, ranks=1):
    return rank_memory(components, simulate_schedule(components, ranks))


def test_a_rank_by_hand(job):
    """Cohorts of 2 of 4 clients: FedHBM sends and keeps a vector, and the loss or the round."""
    found = parts(job)
    (alone,) = needed(found)
    assert (alone.data, alone.server) == (EXAMPLES, MODEL)
    assert 2 * MODEL <= alone.uploads <= 2 * (MODEL + 8)
    # 64 and 4 bytes, each from a multiple of 64, and 300 of objects.
    assert alone.states == simulate_schedule(found, 1).seen[0] * (2 * 64 + 300)
    assert alone.sum == 8 * (MODEL // 4 + 1)  # integers, of the vector and of the loss
    assert alone.total == sum(alone)
    assert needed(parts(job, "reduction=fast"))[0].sum == MODEL + 4
    steal = needed(parts(job, "balance=steal"), 2)
    assert [rank.uploads for rank in steal] == [alone.uploads / 2] * 2


def test_what_blocks_of_pinned_memory_leave_unused_is_counted(job, monkeypatch):
    monkeypatch.setattr(footprint, "BLOCK_BYTES", 700)  # room for 5 states of 128
    on_cpu, on_gpu = (needed(parts(job, f"device={name}"))[0].states for name in ("cpu", "cuda"))
    assert on_gpu - on_cpu == 4 * (140 - 128)


def test_states_fill_the_cache_at_most(job):
    (found,) = needed(parts(job, "store.cache_gib=0.0000001"))
    assert found.states == 107


def test_examples_in_a_mapped_file_take_no_memory(job):
    found = parts(job)
    held = found.population
    in_file = replace(held, dataset=replace(held.dataset, mapped=True))
    mapped = replace(found, population=in_file)
    assert needed(mapped)[0].data == 0


@pytest.mark.parametrize(
    ("overrides", "free", "said"),
    [
        (["cohort.size=4", "algorithm={name: fedavg}"], 300, "cohort: a rank, for the server, the"),
        (["cohort.size=1"], 300, "store.cache_gib: a rank, for the server, the uploads of its cli"),
        (["algorithm={name: ghb, tau: 9}", "rounds=9"], 300, "algorithm.tau: the server of ghb (1"),
    ],
)
def test_a_run_that_does_not_fit_is_refused_before_round_1(
    job, refused, tmp_path, monkeypatch, overrides, free, said
):
    """The largest part is named; past models of a server before they are made."""
    monkeypatch.setattr(memory, "too_little_memory", lambda needed: free if needed > free else None)
    assert f"JobError: {said}" in refused("run", job, *overrides, "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "job.yaml").exists()
