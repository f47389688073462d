"""What a job will need, found without training: disk, memory, traffic and gradients."""

from hpcfl.plan.figures import Plan, RankShare, plan
from hpcfl.plan.measured import Activations, Process, probe, this_process
from hpcfl.plan.memory import Memory

__all__ = [
    "Activations",
    "Memory",
    "Plan",
    "Process",
    "RankShare",
    "plan",
    "probe",
    "this_process",
]
