"""Observe, restore and seed the random generators that a whole process shares.

No result may depend on them: Python's ``random``, numpy's legacy global generator and torch's
default ones depend on the code that ran before in the process, hence on the number of ranks and on
restarts.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

_SEEDS = 2**32  # numpy's legacy generator takes no larger seed


class Generators(NamedTuple):
    """The states of the generators of a process."""

    python: object
    numpy: tuple[bytes, int, int, float]
    torch: bytes
    cuda: tuple[bytes, ...]
    """The state of every GPU's generator; empty while no GPU is in use."""

    def changed(self, before: "Generators") -> list[str]:
        """The generators whose state changed since ``before``, by their usual names."""
        names = ("Python's random", "numpy.random", "torch's generator", "torch's GPU generator")
        pairs = zip(names, before, self, strict=True)
        return [name for name, old, new in pairs if old != new]


def generators() -> Generators:
    """The present states of the generators."""
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002  # to be compared, not drawn from
    inner = legacy["state"]
    gpus = torch.cuda.default_generators
    return Generators(
        random.getstate(),
        (inner["key"].tobytes(), inner["pos"], legacy["has_gauss"], legacy["gauss"]),
        _state(torch.default_generator),
        tuple(map(_state, gpus)),
    )


def _state(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


@contextmanager
def restored() -> Iterator[None]:
    """Leave all the generators as they were before the block."""
    python = random.getstate()
    legacy = np.random.get_state()  # noqa: NPY002
    gpus = torch.cuda.default_generators
    torchs = [(own, own.get_state()) for own in (torch.default_generator, *gpus)]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        for own, state in torchs:
            own.set_state(state)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all the generators on the CPU for the block, then leave them as they were.

    Draws of a user's class in the block then follow from ``seed`` alone.
    """
    with restored():
        random.seed(seed)
        np.random.seed(seed % _SEEDS)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        yield
