"""Measure, for a plan, this process's memory and that of an example in the model."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hpcfl.io.memory import number, return_freed_memory
from hpcfl.models.flat_vector import layout_of
from hpcfl.setup.components import Components
from hpcfl.types import Batch

STATUS = Path("/proc/self/status")


class Process(NamedTuple):
    """Bytes of memory of a process that has loaded the job and taken a gradient.

    None where the system does not report them: only Linux does.
    """

    resident: int | None
    """Now, without freed memory."""
    peak: int | None
    """At most so far."""


def this_process() -> Process:
    """Measure this process; its freed memory is returned to the system first."""
    return_freed_memory()
    try:
        resident, peak = (number(STATUS, key) for key in ("VmRSS:", "VmHWM:"))
    except OSError:
        return Process(None, None)
    return Process(1024 * resident or None, 1024 * peak or None)  # 0: containers leave lines out


class Activations(NamedTuple):
    """Bytes that one example takes in the model."""

    kept: int
    """For the backward pass."""
    largest: int
    """In one tensor of them."""


def probe(components: Components) -> Activations:
    """Measure the activations of a gradient of one example, and of two; the difference is one's."""
    (one, largest), (two, _) = _kept(components, 1), _kept(components, 2)
    return Activations(two - one, largest)


def _kept(components: Components, examples: int) -> tuple[int, int]:
    """Bytes that a backward pass needs of a batch, with the parameters; and the largest tensor."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    data = components.dataset
    inputs = data.transform(data.sample(examples), components.x0.dtype, None)
    batch = Batch(inputs, data.train.labels[:examples])
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        components.gradient().stochastic(components.x0, batch, 0)
    own = {view.data_ptr() for view in layout_of(components.model).views(components.x0)}
    return sum(sizes.values()), max((n for at, n in sizes.items() if at not in own), default=0)
