"""Two ranks of NCCL on one GPU, which NCCL takes for two hosts (``nccl_rank.py``)."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hpcfl
from tests.gpu.launch import torchrun

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

RANK = Path(__file__).with_name("nccl_rank.py")
JOB = """
data: {kind: digits, clients: 10, partition: {kind: dirichlet, alpha: 0.0}}
model: {name: linear}
cohort: {kind: uniform, size: 4}
algorithm: {name: fedhbm}
local: {epochs: 1, batch_size: 16, lr: 0.1}
rounds: 6
device: cuda
executor: sequential
comm: {backend: nccl, timeout_s: 20}
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def run(*words, timeout=90, **env):
    return torchrun(2, RANK, *words, env=env, timeout=timeout)


def model_of(folder):
    npz = folder.with_suffix(".npz")
    hpcfl.export(folder, npz)
    return np.load(npz)["x"]


@pytest.fixture
def alone(job, tmp_path):
    return hpcfl.run(job, ["comm.backend=auto"], out=tmp_path / "alone").x.numpy()


@pytest.mark.parametrize("settings", [(), ("balance=steal",), ("executor=lanes",)])
def test_the_bits_of_one_rank(job, tmp_path, alone, settings):
    if "executor=lanes" in settings:
        alone = hpcfl.run(job, ["comm.backend=auto", *settings], out=tmp_path / "1").x.numpy()
    done = run("run", job, *settings, "--out", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert "by nccl" in done.stderr
    assert np.array_equal(model_of(tmp_path / "two"), alone)


def test_a_resume_on_one_rank(job, tmp_path, alone):
    done = run("run", job, "rounds=3", "--out", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    hpcfl.resume(tmp_path / "two", ["rounds=6"])
    assert np.array_equal(model_of(tmp_path / "two"), alone)


@pytest.mark.parametrize("fault", ["hang", "kill"])
def test_a_rank_that_is_lost_is_named(job, tmp_path, fault):
    done = run("run", job, "rounds=60", "--out", tmp_path / "two", PLANT=f"{fault} 3")
    assert done.returncode != 0, done.stderr
    if fault == "hang":
        assert "rank 1 (host" in done.stderr
        assert "did not come" in done.stderr
