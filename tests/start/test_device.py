"""Where a rank computes, and what is said of a processor that is slow in bfloat16."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from hpcfl.comm.solo import Solo
from hpcfl.errors import JobError
from hpcfl.start import device
from hpcfl.start.device import bfloat16_warning, device_of, gpu_rank
from tests.local.test_autocast import AVX2, x86

CPU = torch.device("cpu")
ON_GPUS = SimpleNamespace(device="auto", precision="float32")


class Visible(Solo):
    """Ranks of hosts, by the host's name and the GPUs that each sees; one of them is this."""

    def __init__(self, ranks, rank, monkeypatch):
        self.rank, self.size, self._ranks = rank, len(ranks), ranks
        host, gpus = ranks[rank]
        monkeypatch.setattr(device.socket, "gethostname", lambda: host)
        monkeypatch.setattr(device, "boot_id", lambda: f"boot of {host}")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        properties = [SimpleNamespace(uuid=f"{host}-{gpu}") for gpu in gpus]
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)

    def allgather(self, text):
        texts = [
            json.dumps([host, f"boot of {host}", [f"{host}-{gpu}" for gpu in gpus]])
            for host, gpus in self._ranks
        ]
        assert texts[self.rank] == text
        return texts


@pytest.mark.parametrize(
    ("ranks", "taken"),
    [
        # all GPUs of a host, one each, those near the rank's processor, every second rank's host
        ([("a", "0123")] * 4, [0, 1, 2, 3]),
        ([("a", "0"), ("a", "1"), ("a", "2")], [0, 0, 0]),
        ([("a", "01"), ("a", "01"), ("a", "23"), ("a", "23")], [0, 1, 0, 1]),
        ([("a", "01"), ("b", "01"), ("a", "01"), ("b", "01")], [0, 0, 1, 1]),
        ([("a", "0"), ("a", "0")], [0, 0]),  # one GPU for both, by Gloo
    ],
)
def test_ranks_take_a_gpu_each_of_those_that_they_see(monkeypatch, ranks, taken):
    for rank, expected in enumerate(taken):
        comm = Visible(ranks, rank, monkeypatch)
        found = device_of(ON_GPUS, gpu_rank(ON_GPUS, comm))
        assert found == torch.device("cuda", expected)


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    comm = Visible([("a", "01")] * 3, 2, monkeypatch)
    with pytest.raises(JobError, match=r"^device: 3 or more ranks .* see the same 2 GPUs"):
        device_of(ON_GPUS, gpu_rank(ON_GPUS, comm))


def test_ranks_on_cpus_ask_for_no_gpu(monkeypatch):
    comm = Visible([("a", "")] * 2, 1, monkeypatch)
    monkeypatch.delattr(torch.cuda, "device_count")
    assert device_of(ON_GPUS, gpu_rank(ON_GPUS, comm)) == CPU


def a_job(precision):
    return SimpleNamespace(precision=precision)


@pytest.mark.parametrize("slowdown", [1.0, 1.4])
def test_nothing_is_said_where_bfloat16_is_fast(monkeypatch, slowdown):
    monkeypatch.setattr(device, "_bfloat16_slowdown", lambda: slowdown)
    assert bfloat16_warning(a_job("bf16"), CPU) is None


def test_the_measured_factor_is_said(monkeypatch):
    monkeypatch.setattr(device, "_bfloat16_slowdown", lambda: 8.25)
    line = bfloat16_warning(a_job("bf16"), CPU)
    assert "takes 8.2 times as long as in float32; say precision=float32" in line


@pytest.mark.parametrize(
    ("precision", "where"), [("float32", CPU), ("bf16", torch.device("cuda", 0))]
)
def test_nothing_is_measured_elsewhere(monkeypatch, precision, where):
    def measure():
        raise AssertionError("was measured")

    monkeypatch.setattr(device, "_bfloat16_slowdown", measure)
    assert bfloat16_warning(a_job(precision), where) is None


@pytest.mark.slow
@x86
def test_a_processor_with_avx2_alone_is_slow():
    """Measured there: some 50 times; the limit is 1.5."""
    program = (
        "from types import SimpleNamespace; import torch; "
        "from hpcfl.start.device import bfloat16_warning; torch.set_num_threads(1); "
        "print(bfloat16_warning(SimpleNamespace(precision='bf16'), torch.device('cpu')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | AVX2, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.startswith("precision: bf16 is slow on this processor")


def test_check_and_run_say_it(hpcfl, job, tmp_path, monkeypatch, own_process):
    monkeypatch.setattr(device, "_bfloat16_slowdown", lambda: 9.0)
    said = hpcfl("check", job, "precision=bf16").text
    assert "9.0 times as long" in said
    assert "times as long" not in hpcfl("check", job).text
    done = hpcfl("run", job, "precision=bf16", "--out", tmp_path / "run")
    assert done.code == 0
    assert [line for line in done.err if "9.0 times as long" in line]


@pytest.mark.parametrize(
    ("given", "found"), [({}, "32"), ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "1")]
)
def test_lanes_have_a_hardware_queue_each_unless_the_user_says_how_many(given, found):
    program = "import os, hpcfl; print(os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])"
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    env = {key: value for key, value in os.environ.items() if key != name} | given
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [found]
