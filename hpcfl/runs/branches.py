"""Where a run was branched from others: branches.json, whose checksum every checkpoint records.

A branch begins with the model, the client states and the log of its parent at a round, and goes on
with other settings.  A branch of a branch lists both, the older one first.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from hpcfl.errors import StoreError
from hpcfl.io import checksum
from hpcfl.io.files import parse_json, read_bytes
from hpcfl.runs.job_file.resume_rules import immutable_changes
from hpcfl.runs.job_file.settings import Settings, written


class Branch(NamedTuple):
    """A round from which a run has other settings than its parent; of a mere copy, the same."""

    parent: str
    """The parent's directory, absolute as it was then."""
    round: int
    """Rounds completed by then, counted from the beginning of the oldest parent."""
    changes: tuple[Mapping[str, Any], ...]
    """For each changed setting its "key", and its values "before" and "after"."""

    @classmethod
    def of(cls, parent: Path, round: int, before: Settings, after: Settings) -> Self:
        """The branch of ``parent`` whose settings change from ``before`` to ``after``.

        Changes that a resume may make too are left out, as they make it no other run.
        """
        changes = [
            {"key": key, "before": before.get(key), "after": after.get(key)}
            for key, _, _ in immutable_changes(before, after)
        ]
        return cls(str(parent.absolute()), round, tuple(changes))

    @classmethod
    def parse(cls, entry: Any) -> Self:
        """The branch of an object in branches.json or history.jsonl.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        keys = ("key", "before", "after")
        changes = tuple({key: change[key] for key in keys} for change in entry["changes"])
        return cls(str(entry["branch_of"]), int(entry["round"]), changes)

    @property
    def entry(self) -> dict[str, Any]:
        """As an object of branches.json and history.jsonl; that of a mere copy has no changes."""
        changes = {"changes": list(self.changes)} if self.changes else {}
        return {"branch_of": self.parent, "round": self.round, **changes}

    @property
    def course(self) -> str:
        """The round and the changes: "at round 40: local.lr 0.01 -> 0.003"."""
        changes = (
            f"{c['key']} {written(c['before'])} -> {written(c['after'])}" for c in self.changes
        )
        return f"at round {self.round}: {', '.join(changes)}"

    def __str__(self) -> str:
        return f"branch of {self.parent} {self.course}"


def read_branches(path: Path) -> tuple[Branch, ...]:
    """Read a branches.json; of a run that is no branch, which has none, nothing.

    Raises:
        StoreError: it is damaged, or cannot be read.
    """
    try:
        content = read_bytes(path, "put it back")
    except FileNotFoundError:
        return ()
    return parse_branches(path, content)


def parse_branches(path: Path, content: bytes) -> tuple[Branch, ...]:
    """Parse the content of a branches.json.

    Raises:
        StoreError: it is damaged.
    """
    try:
        found = parse_json(checksum.remove_from_json(content))
        return tuple(Branch.parse(entry) for entry in found["branches"])
    except (KeyError, TypeError, ValueError) as e:
        raise StoreError(f"{path}: is damaged: {e}; put it back") from e


def write_branches(branches: Sequence[Branch]) -> bytes:
    """Return the content of a branches.json; the caller writes the file."""
    return checksum.add_to_json(json.dumps({"branches": [branch.entry for branch in branches]}))
