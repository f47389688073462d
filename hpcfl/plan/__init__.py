"""Predict what a job will need, without training: disk, memory, traffic, gradients, time."""

from hpcfl.plan.memory import Activations, Memory, Process, probe, this_process
from hpcfl.plan.resources import Plan, RankShare, plan
from hpcfl.plan.time import CostModel, Prediction, Work, predict, work

__all__ = [
    "Activations",
    "CostModel",
    "Memory",
    "Plan",
    "Prediction",
    "Process",
    "RankShare",
    "Work",
    "plan",
    "predict",
    "probe",
    "this_process",
    "work",
]
