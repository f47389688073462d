"""Every kernel compiles for every generation of GPUs, with few spills, and fits into shared memory.

No GPU is needed: Triton brings the assembler.  The shapes are those of the built-in models.
"""

import re
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from hpcfl.local.triton_kernels import blocks
from tests.long_form import long_form

SHARED = {80: 163, 90: 227, 100: 227}  # KiB that a program may have
SPILLED = 8  # bytes: two registers of the fastest blocks cost nothing that was seen
SMALLEST = 99  # KiB of capabilities 8.6, 8.9 and 12.0, for which the table must hold, too
FLOATS = {"ieee": "*fp32", "tf32": "*fp32", "bf16": "*bf16"}

# Images' side, channels, outputs, side of a kernel, stride, padding, bias.
CONVOLUTIONS = {
    "lenet-1": (32, 3, 64, 5, 1, 0, True),
    "lenet-2": (14, 64, 64, 5, 1, 0, True),
    "resnet20-1": (32, 16, 16, 3, 1, 1, False),
    "resnet20-3": (16, 32, 64, 3, 2, 1, False),
    "cnn_fedavg": (28, 1, 32, 5, 1, 2, True),
    "resnet18-4": (4, 512, 512, 3, 1, 1, False),
}
NORMS = {"resnet20-1": (1024, 16), "resnet20-3": (64, 64), "resnet18-4": (16, 512)}
HIDDEN = {"char_lstm": 100}


def of_convolution(name, precision):
    """Each kernel, its pointers, constants, warps and stages."""
    from hpcfl.local.triton_kernels import conv

    side, channels, outputs, taps, stride, padding, bias = CONVOLUTIONS[name]
    out = (side + 2 * padding - taps) // stride + 1
    real = FLOATS[precision]
    table = blocks.convolution_blocks(channels, outputs, taps**2, 2 if real == "*bf16" else 4)
    shape = {
        "H": side,
        "W": side,
        "C": channels,
        "N": outputs,
        "P": out,
        "Q": out,
        "TAPS": taps**2,
        "ACROSS": taps,
        "SH": stride,
        "SW": stride,
        "PH": padding,
        "PW": padding,
        "WIDEN": False,
        "PRECISION": "tf32" if precision == "tf32" else "ieee",
    }
    pointers = {
        **dict.fromkeys(("x", "w", "y", "g", "dx"), real),
        **dict.fromkeys(("bias", "dw", "dbias"), "*fp32"),
    }
    for kernel, tile, more in (
        (conv.conv_forward, table.forward, {"BIAS": bias}),
        (conv.conv_input_gradient, table.inputs, {}),
        (conv.conv_kernel_gradient, table.kernels, {"BIAS": bias, "SPLIT": table.split}),
    ):
        sizes = {"ROWS": tile.rows, "COLUMNS": tile.columns, "INNER": tile.inner}
        yield kernel, pointers, shape | more | sizes, tile.warps, tile.stages


def of_norm(name, precision):
    from hpcfl.local.triton_kernels import group_norm

    pixels, channels = NORMS[name]
    rows, columns = blocks.norm_block(pixels, channels // 2)
    pointers = dict.fromkeys(("x", "dx"), FLOATS[precision])
    shape = {"PIXELS": pixels, "C": channels, "G": 2, "BR": rows, "BC": columns}
    for kernel in (group_norm.norm_forward, group_norm.norm_backward):
        shape |= {"RELU": True, "RESIDUAL": True}
        yield kernel, pointers, shape, group_norm.WARPS, group_norm.STAGES


def of_pool(name, precision):
    from hpcfl.local.triton_kernels import pool

    side, _, channels, taps, *_ = CONVOLUTIONS[name]
    pointers = {**dict.fromkeys(("x", "y", "g", "dx"), FLOATS[precision]), "places": "*u8"}
    shape = {"H": side - taps + 1, "W": side - taps + 1, "C": channels, "SIZE": pool.SIZE}
    for kernel in (pool.pool_forward, pool.pool_backward):
        yield kernel, pointers, shape, pool.WARPS, pool.STAGES


def of_lstm(name, precision):
    from hpcfl.local.triton_kernels import lstm

    hidden = HIDDEN[name]
    shape = {"H": hidden, "HP": blocks.hidden_block(hidden), "BB": blocks.LSTM_EXAMPLES}
    for kernel in (lstm.lstm_forward, lstm.lstm_backward):
        yield kernel, {}, {**shape, "PRECISION": precision}, blocks.LSTM_WARPS, 1


def of_update(_name, _precision):
    from hpcfl.local.triton_kernels import update

    yield update.update, {"active": "*u8"}, {"SIZE": update.SIZE}, update.WARPS, update.STAGES


CASES = [
    (of_update, "any", "ieee"),
    *((of_convolution, name, precision) for name in CONVOLUTIONS for precision in FLOATS),
    *((of_norm, name, precision) for name in NORMS for precision in ("ieee", "bf16")),
    (of_lstm, "char_lstm", "tf32"),
    *((of_pool, "lenet-1", precision) for precision in ("ieee", "bf16")),
]
SAMPLE = [  # which need the most registers; the others are compiled in the long form alone
    (of_convolution, "lenet-2", "ieee"),
    (of_convolution, "lenet-2", "bf16"),
    (of_convolution, "lenet-1", "tf32"),
    (of_norm, "resnet20-1", "ieee"),
    (of_pool, "lenet-1", "bf16"),
    (of_lstm, "char_lstm", "tf32"),
    (of_update, "any", "ieee"),
]


def compile_all(make, name, precision, folder):
    """The name and capability of every kernel; its registers, bytes of stack and KiB of memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    found = []
    for kernel, pointers, constants, warps, stages in make(name, precision):
        names = kernel.arg_names
        types = dict.fromkeys(names, "*fp32") | pointers
        types |= dict.fromkeys(("eps", "decay"), "fp32")
        types |= dict.fromkeys(("B", "T", "K", "TOTAL", "P", "N", "COLUMNS"), "i32")
        types |= dict.fromkeys(("OF_CLIENT", "OF_ROW", "OF_COLUMN"), "i32")
        types |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(
            kernel,
            {argument: types[argument] for argument in names},
            {argument: value for argument, value in constants.items() if argument in names},
            {
                (at,): [["tt.divisibility", 16]]
                for at, argument in enumerate(names)
                if types[argument].startswith("*")
            },
        )
        options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        for capability in SHARED:
            target = GPUTarget("cuda", capability, 32)
            made = triton.compile(source, target=target, options=options)
            (cubin := folder / "cubin").write_bytes(made.asm["cubin"])
            asked = [tool, "-res-usage", cubin]
            usage = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
            shared = made.metadata.shared / 1024
            found.append((kernel.__name__, capability, registers, stack, shared))
    return found


@pytest.fixture(scope="module")
def compiler(triton):
    """A process without the interpreter, in which kernels are compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(int).result()  # the process has its environment
            yield pool


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "name", "precision"),
    [pytest.param(*case, marks=() if case in SAMPLE else long_form) for case in CASES],
)
def test_kernels_fit_into_registers_and_shared_memory(make, name, precision, compiler, tmp_path):
    for _, capability, _, stack, shared in compiler.submit(
        compile_all, make, name, precision, tmp_path
    ).result():
        assert stack <= SPILLED
        assert shared <= min(SMALLEST, SHARED[capability])
