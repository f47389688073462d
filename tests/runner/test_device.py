"""Where a rank computes, and what is said of a processor that is slow in bfloat16."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from hpcfl.runner import device
from hpcfl.runner.device import bfloat16_warning
from tests.local.test_autocast import AVX2, x86

CPU = torch.device("cpu")


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
        "from hpcfl.runner.device import bfloat16_warning; torch.set_num_threads(1); "
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
