"""Frozen parameters, which do not require a gradient: kept as buffers, under their names.

They are not trained and not sent, no client and no server has them in its state, and ``model.init``
may provide them, as it may all buffers.
"""

from torch import nn


def freeze(model: nn.Module) -> None:
    """Make a buffer of each parameter that does not require a gradient."""
    buffers: dict[nn.Parameter, nn.Buffer] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if not parameter.requires_grad:
                delattr(module, name)
                buffer = buffers.setdefault(parameter, nn.Buffer(parameter.detach()))
                setattr(module, name, buffer)
