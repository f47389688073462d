"""How many cores and GPUs a sweep counts, by what limits its process."""

import pytest

from hpcfl.tools.sweep import run_sweep
from hpcfl.tools.sweep.run_sweep import cores, gpus


@pytest.mark.parametrize(
    ("allocated", "quotas", "count"),
    [
        (None, [], 64),
        ("4", [], 4),
        ("96", [], 64),
        ("8", [16, 2.5], 3),
        (None, [0.1], 1),
        ("", [], 64),
    ],
)
def test_cores_are_those_that_slurm_and_the_groups_leave(monkeypatch, allocated, quotas, count):
    """Whether or not the process is bound to them."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(run_sweep, "core_quotas", lambda: iter(quotas))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")  # of one of the job's tasks
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    if allocated is not None:
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", allocated)
    assert cores() == count


@pytest.mark.parametrize(
    ("named", "seen", "found"),
    [
        (None, 2, ["0", "1"]),
        ("3,5", 2, ["3", "5"]),
        ("3,5,9", 2, ["3", "5"]),
        ("MIG-a,MIG-b,MIG-c", 1, ["MIG-a", "MIG-b", "MIG-c"]),
        ("MIG-GPU-a/1/0,MIG-GPU-a/2/0", 1, ["MIG-GPU-a/1/0", "MIG-GPU-a/2/0"]),
    ],
)
def test_gpus_are_those_that_are_named(monkeypatch, named, seen, found):
    """Of slices of GPUs CUDA shows a process one alone."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: seen)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpus() == found
