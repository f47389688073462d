"""Compare the settings of jobs: find the keys that differ.

Settings are a job's values by their dotted keys: {"local.lr": 0.1, ...}.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]

SEED = "seed"
BRANCH = "branch"
"""Pseudo-key in a branch's settings: its branch points and changed values, as text."""
# Other keys follow from the first of these that every job has, and are not listed.  ("set-up" is a
# pseudo-key of `hpcfl.tools.report.set_ups`.)
_LEADING = ("set-up", "task", "data.kind")
# Sections and keys that say how a run is measured, saved and connected.  No round depends on them:
# a resume may change them (`resume_rules`), and a report takes jobs that differ in them as equal.
# ("log" is of jobs of earlier versions: `hpcfl.runs.job_file.yaml_file`.)
WITHOUT_EFFECT = (
    "balance",
    "evaluate",
    "stop",
    "diagnostics",
    "checkpoint",
    "comm",
    "log",
    "callbacks",
)
# A report takes jobs that differ in these as equal, too: they say where a run is computed.  Not all
# of them may change at a resume, as some change the last bits of the model.
_PLACEMENT = ("store.kind", "store.dir", "store.cache_gib", "threads", "device")
OF_SCORES = ("evaluate.personal", "stop.metric")
"""Keys whose defaults follow from the method and the data, and which a run's job.yaml has."""
_LONG = 24  # characters of a value
_SHOWN = 3  # names of a list


def flatten(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values of a tree by their dotted keys; lists are values."""
    settings: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            settings |= flatten(value, f"{above}{key}.")
        else:
            settings[above + key] = value
    return settings


def section(settings: Settings, name: str) -> dict[str, Any]:
    """The tree of the settings of a section; empty where there are none."""
    below = {
        key.removeprefix(f"{name}."): value
        for key, value in settings.items()
        if key.startswith(f"{name}.")
    }
    heads = dict.fromkeys(key.partition(".")[0] for key in below)
    return {head: below[head] if head in below else section(below, head) for head in heads}


def value_of(settings: Settings, key: str) -> Any:
    """The value of a key, or the tree of a section."""
    return settings[key] if key in settings else section(settings, key)


def written(value: Any) -> str:
    """A setting as a job writes it: true, null, [0.6, 0.3], {width: 32}; escaped if need be."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {written(below)}' for key, below in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if value is None:
        return "null"
    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def distinguishing_settings(jobs: Sequence[Settings], but: Sequence[str] = ()) -> list[str]:
    """For each job, its values of the keys that differ between the jobs: "local.lr 0.1, seed 1".

    A hyperparameter is compared between jobs of one algorithm only.  A key that only some jobs
    have, such as one that is newer than the others' runs, is named where nothing else distinguishes
    them.  Where the tasks (or the data) differ, they stand for every key but the seed that is the
    same in all jobs of a task.

    Args:
        jobs: the settings of each.
        but: keys that are not compared, as the algorithm's name is not.
    """
    jobs = _with_sections_that_may_be_absent(jobs)
    values: dict[str, dict[str, str]] = {}
    for job in jobs:
        for key, value in job.items():
            values.setdefault(_scope(job, key), {})[repr(value)] = written(value)
    known = dict.fromkeys(key for job in jobs for key in job)
    counted = [key for key in known if affects_results(key) and key not in ("algorithm.name", *but)]
    leading = next(
        (key for key in _LEADING if len(found := values.get(key, {})) > 1 and "None" not in found),
        None,
    )
    if leading is not None:
        counted = [k for k in counted if k in (leading, SEED) or not _follows(jobs, leading, k)]
    shown = {
        scope: dict(zip(found, _distinct(list(found.values())), strict=True))
        for scope, found in values.items()
    }
    named = [
        {k for k in counted if k in job and (len(values[_scope(job, k)]) > 1 or k == BRANCH)}
        for job in jobs
    ]
    for keys, rare in zip(named, _keys_of_some(jobs, named), strict=True):
        keys |= rare & {*counted}
    return [
        ", ".join(
            f"{key} {job[key] if key == BRANCH else shown[_scope(job, key)][repr(job[key])]}"
            for key in counted
            if key in keys
        )
        for job, keys in zip(jobs, named, strict=True)
    ]


def _keys_of_some(jobs: Sequence[Settings], named: Sequence[set[str]]) -> list[set[str]]:
    """For each job, its keys that others lack that differ from it in no named key but the seed."""
    alike: dict[str, list[Settings]] = {}
    own_of = [
        repr([(key, job.get(key)) for key in ("algorithm.name", *sorted(keys - {SEED}))])
        for job, keys in zip(jobs, named, strict=True)
    ]
    for job, own in zip(jobs, own_of, strict=True):
        alike.setdefault(own, []).append(job)
    common = {own: set[str].intersection(*map(set, members)) for own, members in alike.items()}
    return [{*job} - common[own] for job, own in zip(jobs, own_of, strict=True)]


def _with_sections_that_may_be_absent(jobs: Sequence[Settings]) -> list[Settings]:
    """Jobs in which a section that another job has not is one setting, as it is there: null."""
    absent = {key for job in jobs for key, value in job.items() if value is None}
    found: list[Settings] = []
    for job in jobs:
        sections = {key: tree for key in absent if key not in job and (tree := section(job, key))}
        kept = {
            key: value
            for key, value in job.items()
            if not any(key.startswith(f"{name}.") for name in sections)
        }
        found.append(kept | sections)
    return found


def _follows(jobs: Sequence[Settings], leading: str, key: str) -> bool:
    """Whether jobs that have the same leading value have the same one of the key."""
    values: dict[str, set[str]] = {}
    for job in jobs:
        scope = f"{job.get(leading)!r} {_scope(job, key)}"
        values.setdefault(scope, set()).add(repr(job[key]) if key in job else "")
    return all(len(found) == 1 for found in values.values())


def affects_results(key: str) -> bool:
    """Whether a report distinguishes jobs that differ in this key."""
    return not any(f"{key}.".startswith(f"{free}.") for free in (*WITHOUT_EFFECT, *_PLACEMENT))


def _scope(job: Settings, key: str) -> str:
    """The key, with the algorithm that it belongs to."""
    return f"{job['algorithm.name']} {key}" if key.startswith("algorithm.") else key


def some_of(names: Sequence[str], separator: str = ", ") -> str:
    """The names in a line for people: the first three, and how many more there are."""
    more = len(names) - _SHOWN
    return separator.join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def changed(before: Settings, now: Settings) -> Iterator[tuple[str, str, str]]:
    """The keys whose values differ, with both values: shortened where that tells them apart."""
    for key in dict.fromkeys((*now, *before)):
        if (key in before) == (key in now) and before[key] == now[key]:
            continue
        found, wanted = (written(job[key]) if key in job else "absent" for job in (before, now))
        if _beginning(found) != _beginning(wanted):
            found, wanted = _beginning(found), _beginning(wanted)
        yield key, found, wanted


def _distinct(texts: Sequence[str]) -> list[str]:
    """The beginnings of long texts; their ends, or else the whole texts, if these are alike."""
    for shown in ([*map(_beginning, texts)], [*map(_end, texts)]):
        if len(set(shown)) == len(set(texts)):
            return shown
    return list(texts)


def _beginning(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def _end(text: str) -> str:
    return text if len(text) <= _LONG else f"...{text[3 - _LONG :]}"


def spanning_schedule(job: Settings) -> str | None:
    """The schedule of the learning rate that follows from the number of rounds, if there is one."""
    if job.get("local.schedule") == "cosine":
        return "local.schedule cosine"
    kind = job.get("local.step_schedule.kind", "constant")
    return None if kind == "constant" else f"local.step_schedule {kind}"
