"""What a job will need, found without training: disk, memory, traffic and gradients."""

from hpcfl.plan.cost_model import Pieces, read_pieces
from hpcfl.plan.measured import Activations, Process, probe, this_process
from hpcfl.plan.memory import Memory
from hpcfl.plan.resources import Plan, RankShare, plan
from hpcfl.plan.time import Foretold, Work, foretell, work

__all__ = [
    "Activations",
    "Foretold",
    "Memory",
    "Pieces",
    "Plan",
    "Process",
    "RankShare",
    "Work",
    "foretell",
    "plan",
    "probe",
    "read_pieces",
    "this_process",
    "work",
]
