"""Decide which keys of a job may change at a resume, and which in a branch.

A resume may change those that no past round depended on.  A branch is a new run that begins with
the model and the client states of another at some round, so it may change every key on which
neither these nor the clients and their data depend.

A job is given by its values under their dotted keys: {"local.lr": 0.1, ...}.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from typing import Any

from hpcfl.errors import JobError
from hpcfl.runs.job_file.settings import (
    WITHOUT_EFFECT,
    Settings,
    changed,
    section,
    spanning_schedule,
)
from hpcfl.runs.job_file.yaml_file import COMMAND_LINE, as_shell_word

# Keys that say where a job's inputs are.  A resume may change them: every checkpoint records a
# digest of each input, and a resume with other content is refused (`hpcfl.data.fingerprints`).
PLACES = (
    "cohort.path",
    "data.partition.path",
    "data.path",
    "data.root",
    "data.test_path",
    "data.tokenizer",
    "devices.path",
)
# What such a key may name in the place of a path.
NO_PATHS = {"data.tokenizer": "bytes"}
# Keys, and sections with all of their keys.
MUTABLE = ("rounds", *WITHOUT_EFFECT, *PLACES, "store.cache_gib", "store.dir", "store.kind")
# Keys of mutable sections that must not change all the same, and why.
IMMUTABLE = {"evaluate.batch_size": "full-batch gradients are summed in batches of this size"}
# Keys and sections that may change in a branch besides; see also ``_why_not_in_branch``.
BRANCHABLE = (
    "algorithm",  # but parameters that change the form of a state (``hpcfl.start.copy_run``)
    "block_size",
    "cohort",
    "device",
    "evaluate.batch_size",
    "executor",
    "local",
    "loss",
    "precision",
    "reduction",
    "rounds",  # also of a cosine
    "threads",
    "weights",
)
# Keys and sections that a branch keeps, and why.
KEPT_IN_BRANCH = {
    "algorithm.name": "the states of the server and of the clients are of this method",
    "algorithm.personal": "the states of the clients are of these parameters",
    "cohort.path": "a checkpoint records the files that its rounds read; use cohort.rounds",
    "devices": "the log adds up the time of these devices",
    "data": "the client states are of these clients and their examples",
    "model": "the checkpoint holds the parameters of this model",
    "seed": "the clients' examples and first states follow from it",
    "store.dtype": "the stored states are of this dtype",
    "task": "it names the data and the model",
}


def job_fingerprint(job: Settings) -> str:
    """A hash of all settings that must not change while a run lasts."""
    return _fingerprint({key: value for key, value in job.items() if not is_mutable(key, job)})


def input_places(job: Settings) -> dict[str, str]:
    """The keys that say where the job's inputs are, and the paths."""
    return {
        key: job[key]
        for key in PLACES
        if isinstance(job.get(key), str) and job[key] != NO_PATHS.get(key)
    }


def is_mutable(key: str, job: Settings) -> bool:
    """Whether no past round of this job depended on the key."""
    return not _why(key, job) and any(f"{key}.".startswith(f"{free}.") for free in MUTABLE)


def immutable_changes(before: Settings, after: Settings) -> Iterator[tuple[str, str, str]]:
    """Those of ``changed`` that a resume must not make: past rounds depend on the key."""
    for change in changed(before, after):
        if not (is_mutable(change[0], before) and is_mutable(change[0], after)):
            yield change


def mutable_settings(job: Settings) -> dict[str, Any]:
    """The part of a job that may change."""
    return {key: value for key, value in job.items() if is_mutable(key, job)}


def differences(before: Settings, after: Settings) -> dict[str, Any]:
    """The new values of the keys that both have and that changed.

    A key that is a section in one of them and a value in the other, such as null, is one key.
    """
    changes: dict[str, Any] = {}
    for key, value in after.items():
        if key in before:
            changes |= {key: value} if before[key] != value else {}
        elif section(before, key):
            changes[key] = value
        elif above := next((name for name in before if key.startswith(f"{name}.")), None):
            changes[above] = section(after, above)
    return changes


def ending_fingerprint(job: Settings) -> str:
    """A hash of the settings by which a run ends; a run that ended goes on if they change."""
    ending = ("stop", "callbacks")
    return _fingerprint({key: job[key] for key in job if key.partition(".")[0] in ending})


def require_allowed(
    before: Settings,
    after: Settings,
    run: Path,
    *,
    copied: bool,
    origin: str = COMMAND_LINE,
    remarks: Mapping[str, str] = {},
) -> None:
    """Refuse changes of a job that its run must not have, from one of its checkpoints on.

    Args:
        before: the job of the run.
        after: with the changes.
        run: its directory.
        copied: whether a copy of the run gets them, which may be a branch.
        origin: where the changes are from, as error messages name it.
        remarks: by key, what error messages add to the run's value.

    Raises:
        JobError: the first such key.
    """
    for key, found, asked in changed(before, after):
        branchable = _is_branchable(key, before, after)
        mutable = is_mutable(key, before) and is_mutable(key, after)
        if branchable if copied else mutable:
            continue
        alone = (key, asked) == ("executor", "sequential") and before["block_size"]
        change = f"{_as_override(key, before, after)}{' block_size=null' if alone else ''}"
        cure = _new_run(run, change)
        if copied:
            reason = f"but a branch keeps it: {_why_not_in_branch(key, before, after)}"
        else:
            why = _why(key, before) or _why(key, after)
            reason = f"which would change past rounds{f' ({why})' if why else ''}"
            branch = f"`hpcfl resume {quote(str(run))} {change} --round T --out NEW` branches it at"
            cure = f"{branch} a kept round T; or {cure}" if branchable else cure
        raise JobError(
            f"{origin}: {key}: is {found} in {run}{remarks.get(key, '')}, asked for is {asked}, "
            f"{reason}; {cure}"
        )


def _as_override(key: str, before: Settings, job: Settings) -> str:
    """The job's value of a key for a command line.

    The whole section where other keys belong to the value, as those of an algorithm to its name,
    where the job does not have the key, or where the section was null ``before``.
    """
    above, _, name = key.rpartition(".")
    whole = above and (name in ("name", "kind") or key not in job or above in before)
    key = above if whole else key
    return as_shell_word(key, job[key] if key in job else section(job, key) or None)


def _new_run(run: Path, change: str) -> str:
    job, model = quote(f"{run}/job.yaml"), "F.safetensors"
    return (
        f"start a new run: `hpcfl run {job} {change} --out NEW`, with model.init={model} of "
        f"`hpcfl export {quote(str(run))} --state-dict {model}` if it is to start from here"
    )


def _is_branchable(key: str, before: Settings, after: Settings) -> bool:
    free = any(f"{key}.".startswith(f"{name}.") for name in (*BRANCHABLE, *MUTABLE))
    return free and _why_not_in_branch(key, before, after) is None


def _why_not_in_branch(key: str, before: Settings, after: Settings) -> str | None:
    """Why a branch keeps a key; None if it may change."""
    if key in PLACES and before.get(key) and after.get(key):
        return None  # as at a resume
    if key == "precision":
        double = "float64" in (before.get(key), after.get(key))
        return "the model and the states have another dtype in float64" if double else None
    if key == "local.keep_optimizer" and bool(before.get(key)) != bool(after.get(key)):
        return "the stored states of the clients have their optimiser's, or have none"
    of_optimizer = ("local.optimizer", "local.optimizer.kind", "local.optimizer.of")
    if before.get("local.keep_optimizer") and key in of_optimizer:
        return "the stored states of the clients are of this optimiser"
    private = before.get("algorithm.name") == "dpfedavg"
    if private and key.startswith(("algorithm.noise", "algorithm.delta", "cohort")):
        return "epsilon counts all rounds alike"
    kept = (why for name, why in KEPT_IN_BRANCH.items() if f"{key}.".startswith(f"{name}."))
    return next(kept, None)


def _fingerprint(settings: Settings) -> str:
    content = json.dumps(settings, sort_keys=True, default=str)
    return blake2b(content.encode(), digest_size=8).hexdigest()


def _why(key: str, job: Mapping[str, Any]) -> str | None:
    """Why a key of a mutable section must not change; None if it may."""
    if key == "rounds" and (schedule := spanning_schedule(job)):
        return f"{schedule} spans all rounds"
    if key == "devices.path" and key in job and job[key] is None:
        return "their devices were drawn"
    return IMMUTABLE.get(key)
