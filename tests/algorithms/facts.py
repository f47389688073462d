"""Facts of a job, and a cohort, for tests that call an algorithm without a round."""

from dataclasses import replace

from hpcfl.algorithms.facts import Cohort, Facts
from hpcfl.algorithms.layout import stand_in

COHORT = Cohort(round=0, size=2, population=4, lr=0.1, grads=())  # of no round in particular


def facts(participation=1.0, population=1, *, size=7, **changes):
    layout = replace(stand_in(size), normalization=("output.bias",))  # for FedBN
    plain = Facts(participation, population, classes=3, layout=layout, steps=2)
    return plain._replace(**changes)
