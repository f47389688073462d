"""Name the directory of a run by its job and by what the overrides change.

``hpcfl run mnist.yaml algorithm.name=fedhbm local.lr=0.3 seed=1`` runs in
``runs/mnist-fedhbm-lr0.3-seed1``.  Names are for people: two jobs may have one name, as where one
file was edited.  A directory that holds another job's run is refused when a run starts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hpcfl.runs.job_file.record import is_record
from hpcfl.runs.job_file.settings import SEED, flatten
from hpcfl.runs.job_file.yaml_file import COMMAND_LINE, JobFile, override

LONGEST = 80  # characters of what follows the job's name
RUNS = Path("runs")
_METHOD = "algorithm.name"
# Keys whose value is clear without the key: fedhbm, not name-fedhbm.
_VALUE_ALONE = ("name", "kind", "task", "precision")
# Keys that mean something in their section alone: cohort_size5, evaluate_every10.
_VAGUE = ("size", "every", "last", "keep", "share", "dir", "path", "root", "of", "init", "seed")
_ODD = re.compile(r"[^A-Za-z0-9._+-]+")


def run_name(job: str | Path, overrides: Sequence[str], objects: Sequence[str] = ()) -> str:
    """The job's name, the algorithm, the other settings of the overrides by key, and the seed.

    The order of the overrides does not matter where they set different keys.  Characters that are
    odd in a directory's name become "_", and much is cut; a digest of the overrides follows then.

    Args:
        job: the file, the folder of a record, or the name of a packaged job.
        overrides: ``key.path=value`` settings.
        objects: names of Python objects that the run is given, each with a digest.

    Raises:
        JobError: an override is malformed.
    """
    file = JobFile(COMMAND_LINE, {})
    override(file, overrides)
    settings = flatten(file.tree)
    # A section without keys is a change too: local={}.
    settings |= {key: {} for key, value in _sections(file.tree) if not value}
    parts = [_part(key, settings[key]) for key in sorted(settings, key=_order)]
    text = "-".join(_ODD.sub("_", part).strip("_-") or "_" for part in parts)
    if objects or len(text) > LONGEST or text != "-".join(parts):
        said = "\0".join([*sorted(f"{key}={value!r}" for key, value in settings.items()), *objects])
        digest = blake2b(said.encode(), digest_size=3).hexdigest()
        text = "-".join(filter(None, [text[:LONGEST].rstrip("_-."), digest]))
    own = Path(job).resolve().name if is_record(Path(job)) else Path(job).stem
    return f"{own}-{text}" if text else own


def run_directory(job: str | Path, overrides: Sequence[str]) -> Path:
    """The default directory of a run.

    Raises:
        JobError: an override is malformed.
    """
    return RUNS / run_name(job, overrides)


def _sections(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield above + key, value
            yield from _sections(value, f"{above}{key}.")


def _order(key: str) -> tuple[int, str]:
    return (0 if key == _METHOD else 2 if key == SEED else 1), key


def _part(key: str, value: Any) -> str:
    """A setting in a name: "fedhbm", "lr0.3", "nesterov-true", "cohort_size5"."""
    *above, last = key.split(".")
    label = "_".join([*above[-1:], last]) if last in _VAGUE else last
    text = _text(value)
    if last in _VALUE_ALONE:
        return text
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{label}{'' if number and not label[-1:].isdecimal() else '-'}{text}"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "_".join(map(_text, value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value}"
