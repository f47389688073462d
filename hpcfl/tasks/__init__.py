"""Tasks: a data set, a model and a loss under one name."""

from hpcfl.tasks.losses import LOSSES
from hpcfl.tasks.presets import TASKS

__all__ = ["LOSSES", "TASKS"]
