"""Choose the examples of a client's local steps."""

from collections.abc import Callable, Iterator
from itertools import repeat

import numpy as np

from hpcfl.types import IntArray


def steps_of_passes(examples: int, *, batch_size: int | None, epochs: int, drop_last: bool) -> int:
    """The local steps of ``epochs`` passes over a client's examples.

    A pass is ceil(examples / batch_size) steps; floor with ``drop_last``, but at least one.

    Args:
        examples: n, of the client.
        batch_size: B, or None for full batches.
        epochs: E.
        drop_last: skip the last partial batch of every pass.
    """
    return epochs * _per_pass(examples, batch_size, drop_last)


def order(
    examples: int,
    *,
    batch_size: int | None,
    steps: int,
    drop_last: bool,
    generator: Callable[[], np.random.Generator],
) -> Iterator[IntArray]:
    """The positions, from 0 to n - 1, of the batch of each of so many local steps.

    Every pass is shuffled anew.  A batch of all examples is not shuffled; ``generator`` is called
    only where something is.
    """
    if batch_size is None or batch_size >= examples:
        return repeat(np.arange(examples), steps)
    return _shuffled(
        examples, batch_size, steps, _per_pass(examples, batch_size, drop_last), generator()
    )


def examples_in_batches(
    examples: int, *, batch_size: int | None, steps: int, drop_last: bool
) -> int:
    """The number of examples in all batches of ``order``, for so many ``steps``."""
    if batch_size is None or batch_size >= examples:
        return steps * examples
    per_pass = _per_pass(examples, batch_size, drop_last)
    passes, rest = divmod(steps, per_pass)
    return passes * min(examples, per_pass * batch_size) + rest * batch_size


def _per_pass(examples: int, batch_size: int | None, drop_last: bool) -> int:
    """Steps of one pass over the examples."""
    if batch_size is None:
        return 1
    return max(1, examples // batch_size) if drop_last else -(-examples // batch_size)


def _shuffled(
    examples: int, size: int, count: int, per_pass: int, generator: np.random.Generator
) -> Iterator[IntArray]:
    """``count`` batches out of shuffled passes of ``per_pass`` batches."""
    ends = range(size, size * per_pass + 1, size)
    while count > 0:
        positions = generator.permutation(examples)
        for end in ends[:count]:
            yield positions[end - size : end]
        count -= per_pass
