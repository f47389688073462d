"""What a model is to the rest of the program."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import nn

from hpcfl.data.base import DataConfig
from hpcfl.types import PathText, Section


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """The ``model`` section of a job; a model's own keys are the fields of its subclass."""

    init: PathText | None = None
    """A file of initial weights: a flat .npy vector or a .safetensors state dict."""

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
