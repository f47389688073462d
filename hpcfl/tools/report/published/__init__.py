"""The numbers that the papers print, one csv file a paper.

A row says where a number stands (paper, table), which runs it belongs to (data, model, split,
clients, cohort, algorithm, and settings by their dotted keys; what is empty is not compared), and
what it is: a metric, after how many rounds, in the paper's own unit (accuracies in percent).

    accuracy_last       test accuracy after the last round
    accuracy_last100    mean test accuracy of the last 100 rounds (last10: 10, of epochs)
    rounds_to_70        first round at 70 % of the centralised accuracy; no value: never
    speedup_70          FedAvg's rounds to there over the method's
    overhead            vectors sent down and up a round, over FedAvg's
    hours               wall time of the run in hours; the note has the paper's machine

The value is "nan" where the paper prints NaN.  What the papers show in figures alone is not here:
the texts of figures 1 and 7 of FedHBM and the curves of the slides hold no numbers.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from hpcfl.runs.job_file.settings import BRANCH, Settings
from hpcfl.user_code.names import short_name

PAPERS = ("fedhbm", "fedcm", "fedmim", "scaffold_slides")
_SET_UP = ("data", "model", "split", "clients", "cohort", "algorithm")


@dataclass(frozen=True)
class Published:
    """One printed number."""

    paper: str
    table: str
    set_up: Mapping[str, str]
    """Data, model, split, clients, cohort and algorithm; what the table leaves open is absent."""
    settings: Settings
    """The keys of a job that the table varies or states."""
    metric: str
    rounds: int | None
    """Of the whole run, or None where the paper does not say."""
    value: float | None
    std: float | None
    """Over the paper's seeds, or None where it prints none."""
    note: str


@cache
def published() -> tuple[Published, ...]:
    """Every number of every paper."""
    found = []
    for paper in PAPERS:
        text = files(__name__).joinpath(f"{paper}.csv").read_text("ascii")
        found += [_row(line) for line in csv.DictReader(text.splitlines())]
    return tuple(found)


def repeated(job: Settings) -> list[Published]:
    """The rows that a run of the job repeats, whatever its other settings."""
    if BRANCH in job:  # its settings were others in its first rounds
        return []
    if any(key.startswith("devices.") for key in job):  # no paper of these has any
        return []
    own = set_up(job)
    return [
        row
        for row in published()
        if all(own[name] == text for name, text in row.set_up.items())
        and all(job.get(key) == value for key, value in row.settings.items())
    ]


def find(job: Settings, *metrics: str) -> list[Published]:
    """The rows of these metrics that belong to a job, of runs as long as it or most nearly so.

    They print one number, perhaps in several tables.
    """
    rows = [row for row in repeated(job) if row.metric in metrics]
    lengths = sorted({row.rounds or 0 for row in rows}, reverse=True)
    nearest = min(lengths, key=lambda rounds: abs(rounds - job["rounds"]), default=0)
    return [row for row in rows if (row.rounds or 0) == nearest]


def centralised(job: Settings) -> Published | None:
    """The centralised accuracy of the job's data and model, or None where none is printed."""
    own = set_up(job)
    for row in published():
        if row.set_up["algorithm"] == "centralized" and all(
            row.set_up[name] == own[name] for name in ("data", "model")
        ):
            return row
    return None


def set_up(job: Settings) -> dict[str, str]:
    """A job's set-up in the words of the tables."""
    return {
        "data": str(job.get("data.kind")),
        "model": str(job.get("model.name")),
        "split": _split(job),
        "clients": str(job.get("data.clients")),
        "cohort": f"{job.get('cohort.kind')} {job.get('cohort.size', job.get('cohort.p'))}",
        "algorithm": short_name(str(job.get("algorithm.name"))),
    }


def _split(job: Settings) -> str:
    """Which examples a client holds: "dirichlet 0.3", "symmetric dirichlet 0.3", "iid, colour".

    Of data without a partition, such as quadratics, their name.
    """
    kind = str(job.get("data.partition.kind") or job.get("data.kind"))
    count = job.get("data.partition.examples") or job.get("data.max_examples")
    words = [kind]
    if kind == "dirichlet":
        words.append(f"{job['data.partition.alpha']:g}")
        # With alpha 0 both forms are the same shards.
        if job.get("data.partition.form") == "symmetric" and job["data.partition.alpha"]:
            words.insert(0, "symmetric")
    elif kind == "similarity":
        words.append(f"{job['data.partition.percent']:g}")
    elif count and kind != "pooled":
        words.append(str(count))
    split = " ".join(words)
    if any(key.startswith("data.colour.") and value for key, value in job.items()):
        split += ", colour"
    if job.get("data.holdout"):
        split += ", holdout"
    if job.get("data.validation.share"):
        split += ", validation"
    return split


def _row(line: Mapping[str, str]) -> Published:
    settings: dict[str, Any] = {}
    for text in filter(None, line["settings"].split("; ")):
        key, _, value = text.partition("=")
        settings[key] = _value(value)
    return Published(
        paper=line["paper"],
        table=line["table"],
        set_up={name: line[name] for name in _SET_UP if line[name]},
        settings=settings,
        metric=line["metric"],
        rounds=int(line["rounds"]) if line["rounds"] else None,
        value=float(line["value"]) if line["value"] else None,
        std=float(line["std"]) if line["std"] else None,
        note=line["note"],
    )


@cache  # the rows have few values, and YAML is slow
def _value(text: str) -> Any:
    return yaml.safe_load(text)
