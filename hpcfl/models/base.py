"""The interface of a model: its section of the job, and the module that it builds."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator
from torch import nn

from hpcfl.errors import JobError
from hpcfl.models import imagenet
from hpcfl.types import Section, absolute

Statistics = Literal["mean", "local", "frozen"]
_CHANNELS = 4  # of an image, at most: red, green, blue, opacity
TORCHVISION = "torchvision"  # as ``init``: the default weights that torchvision publishes


def _absolute(init: str) -> str:
    return init if init == TORCHVISION else absolute(init)


InitText = Annotated[str, AfterValidator(_absolute)]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """The ``model`` section of a job; a model's own keys are the fields of its subclass."""

    imagenet: ClassVar[str | None] = None
    """The name of the file of torchvision's default ImageNet weights, if there is one."""
    classifies: ClassVar[bool] = False
    """Whether the model is for classification only."""
    takes_names: ClassVar[bool] = False
    """Whether it may have several inputs, which its forward takes by name."""

    init: InitText | None = None
    """Initial weights: a .npy, .safetensors, .pth or .pt file, or "torchvision" (ImageNet's)."""
    init_layers: Literal["all", "backbone"] = "all"
    """The layers that take their weights from ``init``. backbone: all but the last, which stays
    random even if its shape fits."""
    statistics: Statistics | None = None
    """The running statistics of batch normalisation: mean, of the clients', as the parameters;
    local, each client its own; frozen, as the model was made with them. mean when absent, but local
    of a method that says so."""

    def __post_init__(self) -> None:
        if self.init == TORCHVISION and self.imagenet is None:
            raise ValueError(
                "init: torchvision publishes no weights of this model; name a file, or take "
                "resnet18 or mobilenet_v2"
            )

    @property
    def init_file(self) -> Path | None:
        """The file of the initial weights, once it is fetched; None without ``init``."""
        if self.init == TORCHVISION and self.imagenet is not None:
            return imagenet.cache_path(self.imagenet)
        return Path(self.init) if self.init else None

    def fetch(self) -> None:
        """Download torchvision's weights if ``init`` is "torchvision"; called on one rank alone.

        Raises:
            JobError: they are missing and cannot be downloaded.
        """
        if self.init == TORCHVISION and self.imagenet is not None:
            imagenet.fetch(self.imagenet)

    def check(self, data: Section) -> None:
        """Check that the model can use the data of the job's ``data`` section.

        Raises:
            ValueError: it cannot; the text begins with the key at fault.
        """

    def require_code(self) -> None:
        """Import what the keys name, if they name code; called before data are loaded.

        Raises:
            JobError: it cannot be imported, or called with the section's arguments.
        """

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model, randomly initialised from torch's global generator.

        Args:
            input_shape: of one transformed example, without the batch dimension; of several inputs
                a dict of these, by name.
            outputs: number of classes, or of regression targets.

        Raises:
            JobError: the model does not fit the data's shape.
        """


def require_images(model: str, shape: tuple[int, ...], least: int) -> None:
    """Check that examples are images [C, H, W] of at least ``least`` x ``least`` pixels.

    Raises:
        JobError: they are not.
    """
    hint = _reshaping(shape)
    if len(shape) != 3 or min(shape[1:]) < least or hint:
        raise JobError(
            f"model.name: {model} takes images of shape (C, H, W), at least {least}x{least}, not "
            f"{shape}{hint}"
        )


def _reshaping(shape: tuple[int, ...]) -> str:
    """Advice to turn images (H, W) or (H, W, C) into (C, H, W); empty if they are neither.

    Without it an image with 1, 3 or 4 channels last would be taken for one of many channels, 1, 3
    or 4 pixels wide.  Series of several channels may be one pixel wide, but hardly ever have as
    many channels as points.
    """
    if len(shape) == 2:
        return "; these have no channels: use x[:, None] (x and x_test in numpy) instead"
    if len(shape) != 3 or min(shape[:2]) <= _CHANNELS:
        return ""
    if shape[2] in (3, _CHANNELS) or (shape[2] == 1 and shape[0] == shape[1]):
        return (
            "; these have their channels last: use np.transpose(x, (0, 3, 1, 2)) (x and x_test in "
            "numpy) instead"
        )
    return ""
