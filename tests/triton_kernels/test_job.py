"""A job with ``executor: triton``, on the simulated GPU of tests/gpu."""

import numpy as np
import pytest
import torch
import yaml

import hpcfl
from hpcfl.errors import JobError
from hpcfl.local.triton_kernels.blocks import VERSION
from hpcfl.start.environment import KEYS_OF_BITS, triton_version
from tests.gpu.fake_cuda import fake_cuda
from tests.gpu.test_fake_device import require_same, rounds

torch.set_num_threads(1)
ALONE = ["executor=sequential", "block_size=null"]


@pytest.fixture
def job(tmp_path):
    """Of five clients with three small images each."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((15, 3, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(15) % 3, client=np.arange(15) % 5)
    path = tmp_path / "job.yaml"
    tree = {
        "data": {"kind": "arrays", "path": str(tmp_path / "d.npz")},
        "model": {"name": "cnn_pfl"},
        "cohort": {"kind": "cyclic", "size": 2},
        "algorithm": {"name": "fedhbm"},
        "local": {"epochs": 1, "batch_size": 3, "lr": 0.1},
        "rounds": 1,
        "executor": "triton",
        "block_size": 2,
    }
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/gpu plays it there")
@pytest.mark.parametrize("settings", [[], ["algorithm={name: fedavg}", "local.weight_decay=0.1"]])
def test_rounds_are_those_of_the_cpu(job, settings, tmp_path, monkeypatch):
    # The simulated graphs repeat operations of torch, and an interpreted kernel is none.
    monkeypatch.setattr("hpcfl.local.block.CudaGraphStep", lambda step: step)
    expected = rounds(job, "cpu", tmp_path / "cpu", [*settings, *ALONE])
    with fake_cuda():
        found = rounds(job, "cuda", tmp_path / "cuda", settings)
    require_same(found, expected, 1e-5)


def test_a_cpu_is_refused(job, tmp_path):
    with pytest.raises(JobError, match="executor: found triton on a CPU, and it needs a GPU; say"):
        hpcfl.run(job, ["device=cpu"], out=tmp_path / "out")


def test_a_machine_without_triton_is_refused(job, tmp_path, monkeypatch):
    monkeypatch.setattr("hpcfl.start.components.executors.find_spec", lambda name: None)
    with fake_cuda(), pytest.raises(JobError, match="found triton, but Triton is not installed"):
        rounds(job, "cuda", tmp_path / "cuda")


def test_the_executor_is_part_of_the_bits():
    from hpcfl.runs.job_file.resume_rules import BRANCHABLE, is_mutable

    assert not is_mutable("executor", {}) and "executor" in BRANCHABLE
    assert "triton" in KEYS_OF_BITS
    assert triton_version().endswith(f", table {VERSION}")
