"""The memory to ask for, by hand: of the sum, and of what was measured."""

import pytest
import torch

from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from hpcfl.tools.plan.host_memory import (
    COMPUTED,
    GPU_BYTES,
    MEASURED,
    PROGRAM,
    computed_memory,
    measured_memory,
)
from hpcfl.tools.plan.measure import Measurement
from hpcfl.tools.plan.resources import plan

EXAMPLES = (40 + 12) * (3 * 8 + 8)  # bytes: of three float64 features and an int64 label
PEAK = 1_000_000
MEASUREMENT = Measurement(
    ranks=2, machine="by hand", gpus=False, memory=PEAK, gpu_memory=0, rounds=[],
    mean_s=0.0, rest_s=0.0, evaluate_s=0.0, warm_start_s=0.0,
)  # fmt: skip


@pytest.fixture
def plans(job):
    """Of numbers of ranks."""
    parts = build_components(load(job, []), torch.device("cpu"))
    return {ranks: plan(parts, ranks) for ranks in (1, 2, 4)}


@pytest.mark.parametrize("gpus", [False, True])
def test_a_host_has_examples_once(plans, gpus):
    found, least = computed_memory(plans[4], gpus=gpus), plans[4].least_memory
    assert found.rank == PROGRAM + gpus * GPU_BYTES + least.total
    assert found.to_ask(3) == COMPUTED * (3 * (found.rank - EXAMPLES) + EXAMPLES)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_peak_is_corrected_for_the_clients_of_a_rank(plans, ranks):
    """The data and the server are the same; states come in all rounds, not in the first ones."""
    found = measured_memory(plans[ranks], MEASUREMENT, plans[2])
    here, there = plans[ranks].least_memory, plans[2].least_memory
    assert here.states > 0
    assert found.rank == PEAK + here.uploads - there.uploads + here.states
    assert found.to_ask(1) == MEASURED * found.rank
    assert "1.0 MB at the peak of 2 ranks, measured" in found.text
    on_gpu = measured_memory(plans[ranks], MEASUREMENT._replace(gpu_memory=7000), plans[2])
    assert on_gpu.text.endswith("; 7.0 kB of tensors on the GPU")
