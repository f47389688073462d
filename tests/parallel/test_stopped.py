"""A rank that is stopped, in any phase: every other rank ends, with a line that says why.

Nothing on the way out may wait for the stopped one: no word in the store that it holds, no barrier,
no lock.  Nobody ends the ranks: torchrun itself waits for the stopped one for 30 s.
"""

from contextlib import ExitStack
from itertools import product

import pytest

from tests.long_form import long_form
from tests.parallel.lost_rank import LostRank

PHASES = (
    *("connecting", "meeting", "sharing", "grouping", "agreeing", "fetching", "loading"),
    *("building", "beginning", "heartbeats", "verifying"),  # before round 1
    *("training", "evaluating", "saving", "committing", "ending"),
)
SAMPLE = [("own", 0, "agreeing"), ("own", 1, "grouping"), ("torchrun", 0, "loading")]
ALL = [*product(("own", "torchrun"), (0, 1), PHASES)]
AT_ONCE = 3


@pytest.mark.parametrize(
    "cases",
    [
        SAMPLE,
        *(pytest.param(ALL[k : k + AT_ONCE], marks=long_form) for k in range(0, len(ALL), AT_ONCE)),
    ],
    ids=lambda cases: " ".join(f"{launcher}-{rank}-{phase}" for launcher, rank, phase in cases),
)
def test_the_others_end(cases, tmp_path):
    with ExitStack() as stack:
        going = [
            stack.enter_context(LostRank(tmp_path / str(k), *case)) for k, case in enumerate(cases)
        ]
        for case in going:
            case.wait_until_lost()
        for case in going:
            case.wait_until_ended()
            assert case.error
