"""Tasks: a data set, a model and a loss under one name."""

from hpcfl.models.losses import LOSSES
from hpcfl.job.tasks import TASKS

__all__ = ["LOSSES", "TASKS"]
