"""What a model is to the rest of the program."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator
from torch import nn

from hpcfl.data.base import DataConfig
from hpcfl.errors import JobError
from hpcfl.models import imagenet
from hpcfl.types import Section, absolute

TORCHVISION = "torchvision"  # as ``init``: the default weights that torchvision publishes


def _absolute(init: str) -> str:
    return init if init == TORCHVISION else absolute(init)


InitText = Annotated[str, AfterValidator(_absolute)]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """The ``model`` section of a job; a model's own keys are the fields of its subclass."""

    imagenet: ClassVar[str | None] = None
    """The file of torchvision's default ImageNet weights for the model, if there is one."""
    classifies: ClassVar[bool] = False
    """Whether the model is for classes only, not for regression."""

    init: InitText | None = None
    """Initial weights: a .npy, .safetensors, .pth or .pt file, or "torchvision" (ImageNet's)."""
    init_layers: Literal["all", "backbone"] = "all"
    """Which of them to take: backbone leaves the last layer random even where its shape fits."""

    def __post_init__(self) -> None:
        if self.init == TORCHVISION and self.imagenet is None:
            raise ValueError(
                "init: torchvision publishes no weights of this model; name a file, or take "
                "resnet18 or mobilenet_v2"
            )

    @property
    def init_file(self) -> Path | None:
        """Where the initial weights are, once they are fetched; None where there are none."""
        if self.init == TORCHVISION and self.imagenet is not None:
            return imagenet.home(self.imagenet)
        return Path(self.init) if self.init else None

    def fetch(self) -> None:
        """Bring the initial weights into place, if they are to be had; on one rank alone.

        Raises:
            JobError: they are neither here nor to be had.
        """
        if self.init == TORCHVISION and self.imagenet is not None:
            imagenet.fetch(self.imagenet)

    def check(self, data: DataConfig) -> None:
        """Raise ValueError, which begins with the key at fault, where they cannot go together."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model, randomly initialised from torch's global generator.

        Args:
            input_shape: of one transformed example, without the batch dimension.
            outputs: number of classes, or of regression targets.

        Raises:
            JobError: the model does not fit the data's shape.
        """


def require_images(model: str, shape: tuple[int, ...], least: int) -> None:
    """Refuse examples that are no images [C, H, W] of at least ``least`` x ``least`` pixels.

    Raises:
        JobError: they are not.
    """
    if len(shape) != 3 or min(shape[1:]) < least:
        raise JobError(
            f"model.name: {model} takes images of shape (C, H, W), at least {least}x{least}, not "
            f"{shape}"
        )
