"""Layers that are called together, so that ``executor: triton`` can compute them by one kernel."""

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu
from torch.overrides import handle_torch_function, has_torch_function_unary


def norm_relu(norm: nn.Module, images: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(images) + residual).

    A ``TorchFunctionMode`` sees this function in place of GroupNorm and relu.

    Args:
        norm: a layer.
        images: [B, C, ...].
        residual: of the same shape; None: nothing is added.
    """
    # Other layers, such as batch normalisation, are left to what a mode does with them.
    if type(norm) is nn.GroupNorm and has_torch_function_unary(images):
        found: Tensor = handle_torch_function(norm_relu, (images,), norm, images, residual)
        return found
    normed = norm(images)
    return relu(normed if residual is None else normed + residual)


def pooled_relu(images: Tensor) -> Tensor:
    """relu(max_pool2d(images, 2)).

    A ``TorchFunctionMode`` sees this function in place of both.

    Args:
        images: [B, C, H, W].
    """
    if has_torch_function_unary(images):
        found: Tensor = handle_torch_function(pooled_relu, (images,), images)
        return found
    return relu(max_pool2d(images, 2))
