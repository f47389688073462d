"""The loss of a job: that of its data, another for classes, or a function of the user's.

Its terms are computed in float32 or wider, one for each example (or label of a text).

Label smoothing: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna. Rethinking the Inception Architecture for
Computer Vision. CVPR 2016, section 7. arXiv:1512.00567.  Focal: Lin, Goyal, Girshick, He, Dollar.
Focal Loss for Dense Object Detection. ICCV 2017, equation 4. arXiv:1708.02002
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Discriminator, Tag
from torch import Tensor, nn
from torch.nn import functional

from hpcfl.models.losses import TermLoss, label_losses, loss_of
from hpcfl.types import DottedPath, LossName, NonNegative, Section, Share
from hpcfl.user_code.accepts import Accepts
from hpcfl.user_code.find_object import find_object
from hpcfl.user_code.named_section import kind_of, section_of

LOSS = Accepts(
    expected="a function of outputs and labels, your own or of torch.nn.functional, or a class "
    "whose objects are called as one, your own or of torch.nn",
    base=nn.Module,
    packages=("torch.nn",),
    functions=True,
    listed=lambda found: getattr(found, "__module__", "") == functional.__name__,
)


@dataclass(frozen=True, kw_only=True)
class TrainingLoss(Section):
    """A loss in the place of the data's."""

    @abstractmethod
    def terms(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every example [B], or of every label [B, T] of texts.

        Args:
            outputs: of the model, [B, ...], in float32 or wider.
            labels: [B], [B, T], or targets [B, targets].
        """


@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(TrainingLoss):
    """Cross-entropy with the label's probability shared with all classes."""

    kind: Literal["label_smoothing"] = "label_smoothing"
    smoothing: Share = 0.1
    """The share of all classes alike, as in torch.nn.CrossEntropyLoss."""

    def terms(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(1 - smoothing) (-log p of the label) + smoothing mean over the classes of -log p."""
        alike = outputs.logsumexp(-1) - outputs.mean(-1)
        return (1 - self.smoothing) * label_losses(outputs, labels) + self.smoothing * alike


@dataclass(frozen=True, kw_only=True)
class Focal(TrainingLoss):
    """Cross-entropy times (1 - p)^gamma (Lin et al., 2017)."""

    kind: Literal["focal"] = "focal"
    gamma: NonNegative = 2.0
    """How much less an example counts that is classified well already."""

    def terms(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(1 - p)^gamma (-log p), p that of the label."""
        losses = label_losses(outputs, labels)
        # Not 0, where the gradient of a power below 1 is infinite.
        rest = (-torch.expm1(-losses)).clamp(min=torch.finfo(losses.dtype).tiny)
        return rest**self.gamma * losses


@dataclass(frozen=True, kw_only=True)
class OwnLoss(TrainingLoss):
    """A function of the user's, or a class whose objects are called as one."""

    kind: Literal["own"] = "own"
    of: DottedPath
    """Its dotted path."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the function, or those of the class."""

    @cached_property
    def made(self) -> Any:
        """The function; ``hpcfl.job.schema`` refuses what cannot be made."""
        found = find_object(self.of, LOSS)
        return found(**self.keys) if isinstance(found, type) else partial(found, **self.keys)

    def terms(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """What the function returns for these; it is given classes in int64."""
        targets = labels.is_floating_point() or labels.dtype == torch.bool
        made: Tensor = self.made(outputs, labels if targets else labels.long())
        return made


TRAINING_LOSSES: Mapping[str, type[TrainingLoss]] = {
    "label_smoothing": LabelSmoothing,
    "focal": Focal,
    "own": OwnLoss,
}
"""By their kinds."""
LossConfig = Annotated[
    Annotated[Literal["data"], Tag("data")]
    | Annotated[LabelSmoothing, Tag("label_smoothing")]
    | Annotated[Focal, Tag("focal")]
    | Annotated[OwnLoss, Tag("own")],
    Discriminator(kind_of),
    BeforeValidator(section_of(TRAINING_LOSSES, "data")),
]
"""``loss`` of a job."""


def training_loss(
    config: TrainingLoss | Literal["data"], name: LossName, padding: int | None = None
) -> TermLoss:
    """The loss that a job trains with, and that its evaluations report.

    Args:
        config: of the job.
        name: the loss of its data.
        padding: the label that does not count, see ``Dataset.padding``.
    """
    of_data = loss_of(name, padding)
    if isinstance(config, str):
        return of_data
    terms = config.terms
    if padding is not None and isinstance(config, OwnLoss):
        terms = partial(_of_classes, terms, padding)
    return replace(of_data, terms=terms, fused=None)


def _of_classes(
    terms: Callable[[Tensor, Tensor], Tensor], padding: int, outputs: Tensor, labels: Tensor
) -> Tensor:
    """Terms of labels that are all classes: padding, which need be none, becomes class 0."""
    return terms(outputs, labels.masked_fill(labels == padding, 0))
