"""Grey images: their stored form and the transform to model inputs."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SIDE = 28  # pixels, of every data set derived from NIST's forms


@dataclass(frozen=True)
class Grey:
    """Images uint8 [B, H, W] to values in [0, 1]: [B, 1, H, W], or vectors [B, H * W].

    The values are then normalised where ``normal`` says so.
    """

    augment: ClassVar[bool] = False

    flat: bool
    normal: tuple[float, float] | None = None
    """The mean that is taken off and the standard deviation that is divided by; None: neither."""

    def __call__(self, inputs: Tensor, dtype: torch.dtype, draws: Tensor | None) -> Tensor:
        """Model inputs, without augmentation."""
        images = inputs.to(dtype) / 255
        if self.normal is not None:
            mean, std = self.normal
            images = (images - mean) / std
        return images.flatten(1) if self.flat else images.unsqueeze(1)


def levels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes k of values k / 255 [n, ...], without loss.

    Raises:
        ValueError: a value is not of this form; names its row.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # such values are found below
        scaled = values * 255.0
        whole = np.rint(scaled)
        good = (whole >= 0) & (whole <= 255) & (np.abs(scaled - whole) < 1e-3)
    if not good.all():
        row = np.argwhere(~good)[0]
        raise ValueError(
            f"holds {values[tuple(row)]} in row {row[0]}, expected k / 255 for a k of 0 to 255"
        )
    return whole.astype(np.uint8)
