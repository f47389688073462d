"""The numbers of log.jsonl as curves, by the names that TensorBoard and trackers show."""

import math
from collections.abc import Iterator
from pathlib import Path

from hpcfl.runs.log import LogReader
from hpcfl.runs.score_names import is_score
from hpcfl.types import Record


def logged(directory: Path) -> Iterator[Record]:
    """The records of the rounds that are in the log of a run, less what it says of single ranks.

    Raises:
        StoreError: a line of the log is damaged.
    """
    for line in LogReader(directory / "log.jsonl").read():
        numbers = {key: value for key, value in line.items() if not isinstance(value, list)}
        yield {key: math.nan if value is None else value for key, value in numbers.items()}


def curves(record: Record) -> dict[str, float]:
    """The points of a round, by the names of their curves."""
    return {curve_name(key): float(value) for key, value in record.items() if key != "round"}


def curve_name(key: str) -> str:
    """The name of a curve; TensorBoard and trackers group curves by the part before the slash."""
    if is_score(key) or key == "train_loss":
        return f"score/{key}"
    if key.endswith("_s") and not key.endswith("_per_s"):
        return f"time/{key}"
    return f"round/{key}"
