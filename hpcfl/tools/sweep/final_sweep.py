"""Write a sweep of the settings that were chosen: ``hpcfl report --chosen --write-sweep F.yaml``.

Its runs are those of the paper: without validation data, with the settings chosen by them.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hpcfl.errors import JobError
from hpcfl.io.files import present
from hpcfl.io.words import counted
from hpcfl.job.resolve import resolve_algorithm
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.job_file.settings import SEED, flatten, value_of
from hpcfl.runs.job_file.yaml_file import as_yaml, plain
from hpcfl.runs.layout import RunDir
from hpcfl.runs.outputs import check_output, write_output
from hpcfl.start.load_run import load_run
from hpcfl.tools.report.choose import ChosenRuns

_Points = dict[str, dict[str, Any]]  # values by dotted keys, by the labels of points
_Axes = dict[str, _Points]
_VALIDATED = ("validation_", "personal_validation_")  # begin the keys of scores
_ENDINGS = (".yaml",)
_CLASS = ("name", "kind")  # of a section: its other keys are those of the class


def write_final_sweep(chosen: ChosenRuns, path: Path) -> str:
    """Write a sweep of the chosen settings: axes of methods, of set-ups if several, and of seeds.

    Its base job is the job.yaml of the first chosen run.

    Returns:
        A line for the user.

    Raises:
        JobError: nothing was chosen, or the file is there or cannot be written.
        StoreError: the job of a run is damaged.
    """
    check_output(path, _ENDINGS)
    if present(path):  # it may have been edited
        raise JobError(f"--write-sweep: {path} is there; remove it, or choose another file")
    if not chosen.settings:
        raise JobError("--write-sweep: no setting was chosen, so there is no sweep to write")
    jobs = {
        place: _for_all_data(load_run(RunDir(runs[0].path)))
        for place, runs in chosen.settings.items()
    }
    base = next(iter(chosen.settings.values()))[0].path / "job.yaml"
    first = next(iter(jobs.values()))
    found = dict.fromkeys(key for tree in jobs.values() for key, _ in _changes(first, tree))
    keys = [key for key in found if not any(key.startswith(f"{above}.") for above in found)]
    seeds = sorted({run.settings[SEED] for runs in chosen.settings.values() for run in runs})
    # A whole section of the grid has those of its keys that all of the training data change, too.
    always = {
        key: value
        for key, value in _changes(plain(load_run(RunDir(base.parent)).tree), first)
        if not any(f"{key}.".startswith(f"{above}.") for above in keys)
    }
    methods = _names([method for method, _ in jobs])
    set_ups = {"": "", **_names([set_up for _, set_up in jobs if set_up])}
    cells = {
        (methods[method], set_ups[set_up]): {key: value_of(flatten(tree), key) for key in keys}
        for (method, set_up), tree in jobs.items()
    }
    grid, only = _grid(cells)
    sweep: dict[str, Any] = {
        "job": os.path.relpath(base, path.parent),
        "set": always,
        "grid": {**grid, SEED: seeds},
    }
    if only:
        sweep["only"] = only
    if not sweep["set"]:
        del sweep["set"]
    lines = [f"# {line}\n" for line in [*chosen.captions, *chosen.choices]]
    text = as_yaml(sweep, flow=None)
    write_output(path, "".join([*lines, text]).encode(), _ENDINGS)
    runs = len(jobs) * len(seeds)
    return f"{path}: a sweep of {counted(runs, 'run')}, without validation data"


def _grid(cells: Mapping[tuple[str, str], Mapping[str, Any]]) -> tuple[_Axes, _Points]:
    """The axes of the methods and of the set-ups, and what only one of the points has.

    Where a method has no choice in one of the set-ups, or there is one set-up, all are one axis.

    Args:
        cells: values by dotted keys, the same of each, by the names of method and set-up.
    """
    methods = list(dict.fromkeys(method for method, _ in cells))
    set_ups = list(dict.fromkeys(set_up for _, set_up in cells))
    whole = len(methods) * len(set_ups) == len(cells)
    if not whole or not all(set_ups) or {*methods} & {*set_ups}:
        points = {"-".join(filter(None, place)): {**own} for place, own in cells.items()}
        return {"method": points}, {}
    axes: _Axes = {
        "method": {name: {} for name in methods},
        "set-up": {name: {} for name in set_ups},
    }
    only: _Points = {f"{method},{set_up}": {} for method, set_up in cells}
    for key in next(iter(cells.values())):
        if all(_same([cells[method, each][key] for method in methods]) for each in set_ups):
            for set_up in set_ups:
                axes["set-up"][set_up][key] = cells[methods[0], set_up][key]
            continue
        for method in methods:
            values = [cells[method, set_up][key] for set_up in set_ups]
            if _same(values):
                axes["method"][method][key] = values[0]
                continue
            # The grid has what sections of one class have in common, and `only` their other keys.
            common = _common(values)
            if common:
                axes["method"][method][key] = common
            for set_up, value in zip(set_ups, values, strict=True):
                only[f"{method},{set_up}"] |= (
                    {f"{key}.{name}": own for name, own in value.items() if name not in common}
                    if common
                    else {key: value}
                )
    return axes, {labels: own for labels, own in only.items() if own}


def _same(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _common(values: Sequence[Any]) -> dict[str, Any]:
    """The keys and values that sections of one class share; none of other values."""
    if not all(isinstance(value, Mapping) for value in values):
        return {}
    if not all(_same([value.get(name) for value in values]) for name in _CLASS):
        return {}
    return {
        key: value
        for key, value in values[0].items()
        if all(key in other and other[key] == value for other in values)
    }


def _for_all_data(loaded: LoadedJob) -> dict[str, Any]:
    """The job with all training data: no validation data, and nothing that waits for their scores.

    Defaults of the algorithm that followed from the clients are left to follow from all of them.
    """
    tree: dict[str, Any] = plain(loaded.tree)
    tree["data"]["validation"] = None
    stop = loaded.job.stop
    if stop is not None and (stop.metric or "").startswith(_VALIDATED):
        tree["stop"] = None
    algorithm, population = loaded.job.algorithm, loaded.job.data.population
    for field in fields(algorithm):
        value = getattr(algorithm, field.name)
        if field.default is None and value is not None and population is not None:
            absent: dict[str, Any] = {field.name: None}
            unset = replace(loaded.job, algorithm=replace(algorithm, **absent))
            derived = resolve_algorithm(replace(loaded, job=unset), population).job.algorithm
            if getattr(derived, field.name) == value:
                tree["algorithm"][field.name] = None
    return tree


def _changes(
    base: Mapping[str, Any], own: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any]]:
    """The dotted keys, and their values in ``own``, in which two jobs differ, but the seed.

    A section of another class is one key.
    """
    for key, value in own.items():
        before = base.get(key)
        if value == before or above + key == SEED:
            continue
        if (
            isinstance(value, Mapping)
            and isinstance(before, Mapping)
            and all(value.get(name) == before.get(name) for name in _CLASS)
        ):
            yield from _changes(before, value, f"{above}{key}.")
        else:
            yield above + key, value


def _names(texts: Sequence[str]) -> dict[str, str]:
    """Names of points, which name directories, for texts; no two have one name.

    That of a split does not say that it had validation data: it has none now.
    """
    names: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        words = text.replace(", validation", "")
        name = re.sub(r"[^A-Za-z0-9_.+]+", "-", words).strip("-.+") or "chosen"
        names[text] = f"{name}-{len(names) + 1}" if name in names.values() else name
    return names
