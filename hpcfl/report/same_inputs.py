"""Compare the inputs of runs by their content, wherever each run found them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from hpcfl.job.resume_rules import input_places
from hpcfl.run_dir.record import RunRecord


def with_common_paths(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, with one path in the settings for inputs that have the same content.

    A run's data may be moved, and nodes may have copies of their own.  Runs that read the same
    content, by the digests in their newest checkpoints, get the path of the first of them.  If one
    path had different contents, a digest follows it in all runs but those of the first content.
    Runs without digests keep their paths.
    """
    paths: dict[tuple[str, str], str] = {}  # by key and digest
    return [replace(run, settings={**run.settings, **_paths(run, paths)}) for run in runs]


def _paths(run: RunRecord, paths: dict[tuple[str, str], str]) -> Mapping[str, str]:
    """The run's paths as they are to be compared; ``paths`` has those of the runs before it."""
    changed = {}
    places = input_places(run.settings)
    if isinstance(init := run.settings.get("model.init"), str):
        places["model.init"] = init
    for key, path in places.items():
        digest = _digest(run, key)
        if digest is None:
            continue
        taken = any(k == key and other == path for (k, _), other in paths.items())
        changed[key] = paths.setdefault((key, digest), f"{path} ({digest})" if taken else path)
    return changed


def _digest(run: RunRecord, key: str) -> str | None:
    """One digest of all inputs below the path of a key; None if none is recorded."""
    below = sorted(item for item in run.inputs.items() if item[0].partition("/")[0] == key)
    return blake2b(repr(below).encode(), digest_size=4).hexdigest() if below else None
