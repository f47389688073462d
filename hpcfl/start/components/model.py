"""The model of a job: its module, its initial parameters, and its running statistics."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpcfl.algorithms.layout import Layout
from hpcfl.data.base import Dataset
from hpcfl.job.resolve import carried_statistics
from hpcfl.job.schema import LoadedJob
from hpcfl.models.flat_vector import buffers, frozen_note, layout_of
from hpcfl.models.statistics import RunningStatistics, statistics_of
from hpcfl.start.components.initial_model import initial_model
from hpcfl.types import Vector


@dataclass(frozen=True)
class Model:
    """A module, and the parameters with which a run begins; made by ``make_model``."""

    module: nn.Module
    x0: Vector
    """[P], on the device; a meta tensor in rounds that do not need its values."""
    missing_weights: tuple[str, ...]
    """The parameters that ``model.init`` did not provide."""
    statistics: RunningStatistics | None = None
    """The module's running statistics, if rounds move any."""
    carried: str | None = None
    """How they are carried from round to round, see ``carried_statistics``; None without them."""

    @property
    def layout(self) -> Layout:
        """The names and shapes of the parameters in ``x0``."""
        return layout_of(self.module)

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return next(self.module.parameters()).device

    @property
    def buffers(self) -> dict[str, Tensor]:
        """What no round changes of the model, by name, on the device: themselves, not copies.

        Its buffers and frozen parameters; of running statistics those that it was made with.
        """
        kept = self.statistics
        return buffers(self.module) | ({} if kept is None else kept.pieces(kept.initial))

    @property
    def text(self) -> str:
        """The numbers of parameters, of frozen ones, and of running statistics: for the user."""
        text = f"{self.x0.numel()} parameters{frozen_note(self.module)}"
        if self.statistics is None or self.carried is None:
            return text
        return f"{text}, {len(self.statistics.initial)} running statistics ({self.carried})"

    @property
    def initial_statistics(self) -> Vector | None:
        """[Q], the running statistics that the model was made with; None if rounds move none."""
        return None if self.statistics is None else self.statistics.initial


def make_model(
    loaded: LoadedJob, dataset: Dataset, device: torch.device, *, resumed: bool
) -> Model:
    """Draw or read the initial model, and move it to the device.

    Args:
        loaded: the job.
        dataset: of the job, by whose examples a model may find its sizes.
        device: of this rank.
        resumed: the initial parameters are in the run directory: the file of ``model.init`` is not
            read.

    Raises:
        JobError: the model cannot be made.
    """
    x0, module, skipped = initial_model(loaded, dataset, resumed)
    moved = bool(statistics_of(module))
    module, x0 = module.to(device), x0.to(device)
    statistics = RunningStatistics(module) if moved else None
    carried = carried_statistics(loaded.job) if moved else None
    return Model(module, x0, skipped, statistics, carried)
