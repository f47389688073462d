"""Compare the local steps of the sequential and the block executor.

Both are also compared with the device's peak: the number of the step's multiplications and
additions, divided by the rate of products of large matrices in the job's precision.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from common import Measurement, Result, column, main, parser, take_turns
from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.job.schema import LoadedJob
from hpcfl.start.components.build import build_components
from hpcfl.start.components.choose_executor import step_timer, with_executor
from hpcfl.start.components.components import Components
from hpcfl.start.components.executors import make_executor
from hpcfl.start.device import device_of
from round import built_in_jobs

SIZES = (10, 32)  # clients in a block
TURNS = 7
WARM = {"cpu": 1, "cuda": 5}  # steps before the timed ones: kernel selection, graph capture
SIDE = 2048  # rows and columns of the matrices
ALONE = "sequential"


def recurrent_operations(inputs: Sequence[int], weights: Iterable[Sequence[int]]) -> int:
    """Floating-point operations of the matrix products of recurrent layers.

    Args:
        inputs: the shape of what they read: features last, the steps of all examples before.
        weights: shapes; every step multiplies with each matrix. Vectors are biases.
    """
    return 2 * prod(inputs[:-1]) * sum(prod(shape) for shape in weights if len(shape) > 1)


def _mkldnn_layer(
    inputs: Sequence[int], of_inputs: Sequence[int], of_state: Sequence[int], *_: Any, **__: Any
) -> int:
    """The operations of a layer, from the shapes of its arguments."""
    return recurrent_operations(inputs, (of_inputs, of_state))


def _cudnn_layers(
    inputs: Sequence[int], weights: Sequence[Sequence[int]], *_: Any, **__: Any
) -> int:
    """The operations of all layers at once, from the shapes of their arguments."""
    return recurrent_operations(inputs, weights)


def _backward(forward: Callable[..., int]) -> Callable[..., int]:
    """Two products for each of the outputs': the gradients of its two factors."""
    return lambda *args, **kwargs: 2 * forward(*args, **kwargs)


# What FlopCounterMode does not know: recurrent layers that a library computes as a whole.
RECURRENT = {
    torch.ops.aten.mkldnn_rnn_layer: _mkldnn_layer,
    torch.ops.aten.mkldnn_rnn_layer_backward: _backward(_mkldnn_layer),
    torch.ops.aten._cudnn_rnn: _cudnn_layers,
    torch.ops.aten._cudnn_rnn_backward: _backward(_cudnn_layers),
}


def bench_executor(
    job: Path | None, overrides: Sequence[str], sizes: Sequence[int] | None, turns: int
) -> Result:
    """Measure the local step of a job, or of the built-in jobs if none is given.

    Args:
        job: a job file, or None.
        overrides: ``key.path=value`` settings over the job's.
        sizes: of the blocks; when None, those of ``SIZES`` that the clients can fill.
        turns: the number of measured turns, after a warm-up.

    Raises:
        JobError: the job is wrong.
    """
    with tempfile.TemporaryDirectory() as name:
        jobs = [load(job, overrides)] if job else built_in_jobs(Path(name))
        lines = [
            f"{'job':16} {'':14} {'a step of a client':>18} {'to sequential':>14} {'of peak':>8}"
        ]
        figures: list[Measurement] = []
        for loaded in jobs:
            components = build_components(loaded, device_of(loaded.job, 0))
            clients = len(components.population.rows)
            fit = sizes or [size for size in SIZES if size <= clients] or [clients]
            steps = _take_turns(loaded, components, fit, turns)
            ideal = _flops(components) / _peak(components)
            lines += [
                f"{column(loaded.name, 16)} {step.side:14} {1e3 * step.median:15.3f} ms "
                f"{step.over(steps[0]):14.3f} {ideal / step.median:8.1%}"
                for step in steps
            ]
            figures += steps
    lines.append("(to sequential: the median over the turns of the ratio within a turn)")
    return Result("executor", "\n".join(lines), figures, device=components.device)


def _take_turns(
    loaded: LoadedJob, components: Components, sizes: Sequence[int], turns: int
) -> list[Measurement]:
    """The seconds of one client's step, for each executor."""
    functions = {ALONE: _step(components, None)} | {
        f"blocks of {k}": _step(components, k) for k in sizes
    }
    what = f"executor: {loaded.name}: steps"
    times = take_turns(functions, turns, what, warmup=WARM[components.device.type])
    return [Measurement(loaded.name, name, "s", values) for name, values in times.items()]


def _step(components: Components, size: int | None) -> Callable[[], float]:
    """A function that runs a step of one client or of a block; it returns seconds per client."""
    chosen = with_executor(components, "sequential" if size is None else "block", size)
    step = step_timer(chosen, make_executor(chosen, chosen.gradient()), size or 1)
    return lambda: step() / (size or 1)


def _flops(components: Components) -> int:
    """The number of multiplications and additions of one gradient on a batch of client 0."""
    gradient = components.gradient()
    batch = next(components.population.clients.task(0, 0).batches)
    with FlopCounterMode(display=False, custom_mapping=RECURRENT) as counter:
        gradient.stochastic(components.model.x0.clone(), batch, 0)
    counted: int = counter.get_total_flops()
    if not counted:
        raise JobError("model.name: has no matrix product whose time could be compared")
    return counted


def _peak(components: Components) -> float:
    """Multiplications and additions per second, in products of large matrices."""
    dtype = torch.bfloat16 if components.job.precision == "bf16" else components.model.x0.dtype
    a, b = (torch.rand(SIDE, SIDE, device=components.device).to(dtype) for _ in range(2))
    times = []
    for _ in range(WARM[components.device.type] + TURNS):
        began = perf_counter()
        (a @ b).sum().item()  # waits for a GPU
        times.append(perf_counter() - began)
    return 2 * SIDE**3 / median(times[WARM[components.device.type] :])


def command(words: Sequence[str] | None = None) -> int:
    """Run by itself."""
    made = parser("A local step alone and in blocks of clients.", job=True)
    made.add_argument("--sizes", type=int, nargs="+", help="of blocks (default 10 32)")
    options = made.parse_args(words)
    return main(options, lambda o: bench_executor(o.job, o.overrides, o.sizes, TURNS))


if __name__ == "__main__":
    sys.exit(command())
