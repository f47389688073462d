"""The long form of the tests: HPCFL_HOSTILE=20 plays all of what CI plays a sample of.

Of random damage it plays twenty times as many examples as CI does, others than those.
"""

import os

import pytest

TIMES = int(os.environ.get("HPCFL_HOSTILE", "1"))
LONG = TIMES > 1

long_form = pytest.mark.skipif(not LONG, reason="in the long form alone: HPCFL_HOSTILE=20")
