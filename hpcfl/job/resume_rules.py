"""Decide which keys of a job may change at a resume: those that no past round depended on.

A job is given by its values under their dotted keys: {"local.lr": 0.1, ...}.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hpcfl.errors import JobError
from hpcfl.job.settings import WITHOUT_EFFECT, Settings, changed

# Keys, and sections with all of their keys.
MUTABLE = ("rounds", *WITHOUT_EFFECT, "store.cache_gib", "store.dir", "store.kind")
# Keys of mutable sections that must not change all the same, and why.
IMMUTABLE = {"evaluate.batch_size": "full-batch gradients are summed in batches of this size"}


def job_fingerprint(job: Settings) -> str:
    """A hash of all settings that must not change while a run lasts."""
    bound = {key: value for key, value in job.items() if not is_mutable(key, job)}
    content = json.dumps(bound, sort_keys=True, default=str)
    return blake2b(content.encode(), digest_size=8).hexdigest()


def is_mutable(key: str, job: Settings) -> bool:
    """Whether no past round of this job depended on the key."""
    return not _why(key, job) and any(f"{key}.".startswith(f"{free}.") for free in MUTABLE)


def mutable_settings(job: Settings) -> dict[str, Any]:
    """The part of a job that may change."""
    return {key: value for key, value in job.items() if is_mutable(key, job)}


def differences(before: Settings, after: Settings) -> dict[str, Any]:
    """The new values of the keys that both have and that changed."""
    return {key: value for key, value in after.items() if key in before and before[key] != value}


def require_mutable(before: Settings, after: Settings, run: Path) -> None:
    """Refuse changes of a job that would make the past rounds of its run others.

    Raises:
        JobError: the first such key.
    """
    for key, found, asked in changed(before, after):
        if not (is_mutable(key, before) and is_mutable(key, after)):
            why = _why(key, before) or _why(key, after)
            alone = (key, asked) == ("executor", "sequential") and before["block_size"]
            change = f"{key}={asked}{' block_size=null' if alone else ''}"
            raise JobError(
                f"command line: {key}: is {found} in {run}, asked for is {asked}, which would "
                f"change past rounds{f' ({why})' if why else ''}; start a new run: `hpcfl "
                f"run {run}/job.yaml {change} --out NEW`, with model.init=F.safetensors of `hpcfl "
                f"export {run} --state-dict F.safetensors` if it is to start from here"
            )


def _why(key: str, job: Mapping[str, Any]) -> str | None:
    """Why a key of a mutable section must not change; None if it may."""
    if key == "rounds" and job.get("local.schedule") == "cosine":
        return "local.schedule cosine spans all rounds"
    return IMMUTABLE.get(key)
