"""Predict what a job will need, without training: disk, memory, traffic, gradients, time."""

from hpcfl.plan.cost_model import CostModel
from hpcfl.plan.measured import Activations, Process, probe, this_process
from hpcfl.plan.memory import Memory
from hpcfl.plan.resources import Plan, RankShare, plan
from hpcfl.plan.time import Prediction, Work, predict, work

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
