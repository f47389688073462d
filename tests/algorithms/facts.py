"""Facts of a job, for tests that call an algorithm without one."""

from hpcfl.algorithms.base import Facts
from hpcfl.layout import stand_in


def facts(participation=1.0, population=1, *, size=7, **changes):
    plain = Facts(participation, population, classes=3, layout=stand_in(size))
    return plain._replace(**changes)
