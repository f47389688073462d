"""The outputs of a model, in whatever its forward pass returns them."""

from typing import Any

from torch import Tensor


def outputs_of(returned: Any) -> Tensor:
    """A tensor itself; of an object, such as a model of ``transformers`` returns, its ``logits``.

    What is neither is returned as it is, for ``hpcfl.start.checks`` to refuse.
    """
    if isinstance(returned, Tensor):
        return returned
    found: Tensor = getattr(returned, "logits", returned)
    return found
