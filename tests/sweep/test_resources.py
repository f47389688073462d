"""How many cores a sweep counts, by what limits its process."""

import pytest

from hpcfl.sweep import resources
from hpcfl.sweep.resources import cores


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
    monkeypatch.setattr(resources, "core_quotas", lambda: iter(quotas))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")  # of one of the job's tasks
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    if allocated is not None:
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", allocated)
    assert cores() == count
