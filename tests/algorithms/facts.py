"""Facts of a job, for tests that call an algorithm without one."""

from dataclasses import replace

from hpcfl.algorithms.base import Facts
from hpcfl.layout import stand_in


def facts(participation=1.0, population=1, *, size=7, **changes):
    layout = replace(stand_in(size), normalization=("output.bias",))  # for FedBN
    plain = Facts(participation, population, classes=3, layout=layout)
    return plain._replace(**changes)
