"""bfloat16 on processors with and without instructions for it."""

import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from hpcfl.local.autocast import autocast_bfloat16, onednn_has_bfloat16, rnn_without_autocast

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
"""Makes a newer x86 processor compute like one that has AVX2 alone."""

x86 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="only an x86 processor can be held to AVX2"
)


def recurrence():
    torch.manual_seed(0)
    model = nn.LSTM(5, 7, num_layers=2, batch_first=True)
    return model, torch.randn(4, 6, 5)


def value_and_gradient(model, sequence):
    outputs, (hidden, cell) = model(sequence)
    value = outputs.float().square().sum() + hidden.float().sum() + cell.float().sum()
    return value.detach(), torch.autograd.grad(value, list(model.parameters()))


def on_avx2(program):
    """Run lines of Python in a process whose processor has no more than AVX2."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | AVX2,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_an_lstm_in_bfloat16_is_close_to_float32():
    model, sequence = recurrence()
    value, grads = value_and_gradient(model, sequence)
    with autocast_bfloat16("cpu"):
        outputs, _ = model(sequence)
        rough = value_and_gradient(model, sequence)
    assert not torch.equal(outputs.float(), model(sequence)[0])
    assert torch.allclose(rough[0], value, rtol=0.02)
    for one, other in zip(rough[1], grads, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.03 * other.norm()


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_keep_their_precision_under_the_autocast_of_a_gpu(layer):
    """On a GPU autocast would run them in float16; the layers around them are in bfloat16."""
    torch.manual_seed(0)
    recurrent, dense = layer(5, 7, num_layers=2, batch_first=True), nn.Linear(5, 5)
    sequence = torch.randn(3, 6, 5)
    packed = nn.utils.rnn.pack_padded_sequence(sequence, [6, 4, 3], batch_first=True)
    with torch.autocast("cpu", torch.bfloat16):
        halved = dense(sequence)
        with rnn_without_autocast("cpu"):
            found, _ = recurrent(halved)
            found_packed, _ = recurrent(packed)
        assert torch.is_autocast_enabled("cpu")
    assert halved.dtype == torch.bfloat16
    assert torch.equal(found, recurrent(halved.float())[0])
    assert torch.equal(found_packed.data, recurrent(packed)[0].data)


def test_onednn_stays_as_it_was():
    model, sequence = recurrence()
    before = torch._C._get_mkldnn_enabled()
    with autocast_bfloat16("cpu"):
        model(sequence)
    assert torch._C._get_mkldnn_enabled() == before
    with pytest.raises(RuntimeError, match="input"), autocast_bfloat16("cpu"):
        model(torch.zeros(4, 6, 9))
    assert torch._C._get_mkldnn_enabled() == before


@pytest.mark.slow
@x86
def test_a_newer_processor_can_be_held_to_avx2():
    """Else the suite under these variables would prove nothing there."""
    found = on_avx2(
        "import torch; from hpcfl.local.autocast import onednn_has_bfloat16 as has; "
        "print(torch.backends.cpu.get_cpu_capability(), has())"
    )
    assert found == ["AVX2", "False"]


@pytest.mark.slow
@x86
def test_without_bfloat16_in_onednn_an_lstm_needs_this_module():
    found = on_avx2(
        """
import torch
from hpcfl.local.autocast import autocast_bfloat16
model, sequence = torch.nn.LSTM(5, 7, batch_first=True), torch.randn(4, 6, 5)
try:
    with torch.autocast("cpu", torch.bfloat16):
        model(sequence)
except RuntimeError as e:
    print("primitive" in str(e))
with autocast_bfloat16("cpu"):
    print(tuple(model(sequence)[0].shape) == (4, 6, 7))
"""
    )
    assert found == ["True", "True"]


def test_plain_autocast_is_not_touched_where_onednn_can():
    """The same bits as without this module, on a processor with bfloat16."""
    if not onednn_has_bfloat16():
        pytest.skip("oneDNN has no bfloat16 on this processor")
    model, sequence = recurrence()
    with autocast_bfloat16("cpu"):
        ours, _ = model(sequence)
    with torch.autocast("cpu", torch.bfloat16):
        plain, _ = model(sequence)
    assert torch.equal(ours, plain)
