"""Thin the logs of records of ``hpcfl export --record``: ``python docs/thin_record.py FOLDER...``.

A round that was not evaluated has no line of its own: what it sent, computed and took is added to
the next line that stands, so that all sums up to there are those of the run.  The last rounds
stand, because `hpcfl report` finds by their training loss whether a run diverged.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcfl.runs.divergence import RECENT
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import LogReader, log_line

SUMS = ("clients", "down_bytes", "up_bytes", "examples", "steps", "wall_s")
SCORES = ("train_loss", "test_loss", "test_accuracy", "test_top5_accuracy")


def thin(log: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the lines that stand: of round 1, of every evaluation and of the last rounds."""
    sums: dict[str, float] = {}
    for at, line in enumerate(log):
        for key in SUMS:
            if key in line:
                sums[key] = sums.get(key, 0) + line[key]
        if line["round"] <= 1 or "test_loss" in line or at >= len(log) - RECENT:
            scores = {key: line[key] for key in SCORES if key in line}
            yield {"round": line["round"], **sums, "wall_s": round(sums["wall_s"], 6), **scores}
            sums = {}


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        path = RunDir(folder).log
        path.write_bytes(b"".join(map(log_line, thin(LogReader(path).read()))))
