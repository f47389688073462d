"""The settings that the identities hold in, as a job and as the reference says them."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.algorithms.play import ROUNDS, Array, softmax_problem, tree
from tests.algorithms.reference import Setting
from tests.long_form import LONG

PROBLEM = softmax_problem(sizes=(3, 9, 5, 1))
CLIENTS = PROBLEM.population
LR = 0.3

Value = str | float
Conditions = Mapping[str, Value]

COHORTS: Mapping[Value, dict[str, Any]] = {
    "partial": {"kind": "replay", "rounds": [[0, 2], [0, 1, 2, 3], [], [1], [0, 1, 2], [1, 3]]},
    "cyclic": {"kind": "cyclic", "size": 2},
    "full": {"kind": "cyclic", "size": CLIENTS},
    "alone": {"kind": "replay", "rounds": [[0], [2], [], [1], [3], [1]]},
}
BATCHES: Mapping[Value, dict[str, Any]] = {
    "mini": {"batch_size": 4},
    "whole": {"batch_size": 4, "drop_last": True},  # no partial batch: 2, 4, 2 and 2 steps
    "full": {"batch_size": "full"},
}
# With mini-batches, 2 epochs are 2, 6, 4 and 2 steps of the four clients.
STEPS: Mapping[Value, dict[str, int]] = {
    "many": {"epochs": 2},
    "equal": {"steps": 3},
    "one": {"steps": 1},
}
# The hardest value of each comes first; values that are missing here are conditions of some lines.
AXES: Mapping[str, tuple[Value, ...]] = {
    "batches": ("mini", "full"),
    "steps": ("many",),
    "cohort": ("partial", "cyclic", "full"),
    "weights": ("examples", "uniform"),
    "wd": (0.1, 0.0),
    "lr_decay": (0.8,),
    "server_lr": (0.7,),
}
# What needs no product with the rest: together, with the hardest of all else.
MORE: Conditions = {"batches": "whole", "lr_decay": "cosine"}
HARDEST: Conditions = {axis: values[0] for axis, values in AXES.items()}


def within(conditions: Conditions) -> list[Conditions]:
    """Every setting that the conditions allow; in CI every value, not every product of values."""
    hardest = {**HARDEST, **conditions}
    free = {axis: values for axis, values in AXES.items() if axis not in conditions}
    more = {axis: value for axis, value in MORE.items() if axis not in conditions}
    if LONG:
        chosen = [
            *(dict(zip(free, values, strict=True)) for values in product(*free.values())),
            *({axis: value} for axis, value in more.items()),
        ]
    else:
        # The n-th value of each at once, the hardest first; an axis of fewer values stays there.
        most = max(map(len, free.values()))
        chosen = [
            *(
                {axis: values[n] for axis, values in free.items() if n < len(values)}
                for n in range(most)
            ),
            more,
        ]
    found = [hardest | values for values in chosen]
    return [at for n, at in enumerate(found) if at not in found[:n]]


def without(conditions: Conditions, broken: str) -> Conditions:
    """A setting that meets all the conditions but one."""
    return {**HARDEST, **conditions, broken: HARDEST[broken]}


class Method(NamedTuple):
    """An algorithm's keys and its local learning rate."""

    fields: Mapping[str, Any]
    lr: float

    def __str__(self) -> str:
        shown = [f"{key}={value}" for key, value in self.fields.items() if key != "name"]
        shown += [] if self.lr == LR else [f"lr={self.lr:.3g}"]
        return f"{self.fields['name']}({', '.join(shown)})"


def a(name: str, lr: float = LR, **fields: Any) -> Method:
    return Method({"name": name, **fields}, lr)


def job(folder: Path, method: Method, at: Conditions, **changes: Any) -> dict[str, Any]:
    """What a user would write."""
    local = {**BATCHES[at["batches"]], **STEPS[at["steps"]]}
    local |= {"lr": method.lr, "weight_decay": at["wd"]}
    cosine = at["lr_decay"] == "cosine"
    local |= {"schedule": "cosine"} if cosine else {"lr_decay": at["lr_decay"]}
    local |= changes.pop("local", {})
    algorithm = dict(method.fields)
    if method.fields["name"] != "fedexp":  # which finds its own
        algorithm["server_lr"] = at["server_lr"]
    rest = {"cohort": COHORTS[at["cohort"]], "weights": at["weights"], **changes}
    return tree(folder, PROBLEM, algorithm, local=local, **rest)


def cohorts(at: Conditions) -> list[list[int]]:
    """Who is present."""
    cohort = COHORTS[at["cohort"]]
    if cohort["kind"] == "replay":
        return cohort["rounds"]
    size = cohort["size"]
    return [[(t * size + k) % CLIENTS for k in range(size)] for t in range(ROUNDS)]


def setting(at: Conditions, x0: Array) -> Setting:
    """The same in the reference's words."""
    present = cohorts(at)
    return Setting(
        problem=PROBLEM,
        x0=x0,
        cohorts=present,
        participation=sum(map(len, present)) / ROUNDS / CLIENTS,
        lr=LR,
        lr_decay=at["lr_decay"],
        wd=at["wd"],
        batch=None if at["batches"] == "full" else 4,
        drop_last=at["batches"] == "whole",
        uniform=at["weights"] == "uniform",
        **({"epochs": None} | STEPS[at["steps"]]),
    )


def far(one: Array, other: Array) -> bool:
    return np.abs(one - other).max() > 1e-3
