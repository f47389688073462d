"""Python whose sets have another order on each rank: ``hash_seeds.py FIRST WORDS``.

Rank k becomes ``python WORDS`` with PYTHONHASHSEED = FIRST + k.
"""

import os
import sys

from hpcfl.comm.launcher import detect

if __name__ == "__main__":
    first, *words = sys.argv[1:]
    os.environ["PYTHONHASHSEED"] = str(int(first) + detect(os.environ).rank)
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606
