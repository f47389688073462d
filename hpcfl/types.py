"""Types that all packages use: tensors, numbers of a job, examples and batches."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from numpy.typing import NDArray
from pydantic import AfterValidator
from torch import Tensor

from hpcfl.io.paths import require_plain


def absolute(path: str) -> str:
    """The absolute path.

    Raises:
        ValueError: see ``require_plain``.
    """
    return str(Path(require_plain(path)).absolute())


Vector = Annotated[Tensor, "P"]  # all parameters of a model, flat
Scalar = Annotated[Tensor, ""]  # 0-d
IntArray = NDArray[np.int64]

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(gt=0, le=1)]  # (0, 1]
Part = Annotated[float, Interval(gt=0, lt=1)]  # (0, 1)
Decay = Annotated[float, Interval(ge=0, lt=1)]  # [0, 1)
Share = Annotated[float, Interval(ge=0, le=1)]  # [0, 1]
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
# A path as the user gives it, relative to the current directory; kept absolute.
PathText = Annotated[str, AfterValidator(absolute)]
Seed = Annotated[int, Interval(ge=0, lt=2**63)]
# Of a class or function, which hpcfl.user_code.find_object alone imports.
DottedPath = Annotated[str, "dotted path"]

LossName = Literal["cross_entropy", "tokens", "squared", "bits", "quadratic"]
ANSWERED: tuple[LossName, ...] = ("cross_entropy", "tokens", "bits")
"""The losses of labels that an answer hits or misses, which have accuracies."""
PAD = 0  # the class that fills up the sentences of hpcfl's word data


class Section:
    """Base of every dataclass whose fields are keys of a job: strict types, no unknown key."""

    __pydantic_config__: ClassVar[Any] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
        "validate_default": True,
    }


class Stored(Protocol):
    """Inputs that stay in a file until they are needed, such as encoded images."""

    shape: tuple[int, ...]
    """[n, ...], the shape of a tensor of all inputs."""
    dtype: torch.dtype
    workers: int
    """Threads that read inputs before the training needs them."""

    def read(self, rows: IntArray) -> Tensor:
        """The inputs [B, ...] of these rows, on the CPU; called by several threads at once.

        Raises:
            DataError: the file is damaged there.
        """
        ...


class Examples(NamedTuple):
    """n examples, as they are stored."""

    inputs: Tensor | Stored  # [n, ...]
    labels: Tensor  # [n, ...]


class Batch(NamedTuple):
    """B examples for a model and a loss, on the device and in the compute dtype."""

    inputs: Tensor  # [B, ...]
    labels: Tensor  # [B, ...]


Record = dict[str, float | int]  # a round's line of log.jsonl


class Loss(Protocol):
    """The mean loss of a batch."""

    def __call__(self, outputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> Scalar:
        """The mean over the examples whose ``counts`` [B] is 1; outputs and labels are [B, ...]."""
        ...
