"""Requests to copy a run, or to go back in it, as its history records them.

Each is served once: a command that is given again, as by a batch script, is to go on with the run.
Without torch, which `hpcfl batch` does not load.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What a resume was asked for that is to happen once, as a copy or a way back."""

    round: int | None
    """The checkpoint that was asked for; None: the newest."""
    overrides: tuple[str, ...]
    """The settings, as they were given."""

    @property
    def entry(self) -> dict[str, Any]:
        """As a part of an entry of the history."""
        return {"request": {"round": self.round, "overrides": list(self.overrides)}}


def is_done(
    history: Sequence[Mapping[str, Any]], request: Request, copy_of: Path | None = None
) -> bool:
    """Whether a run was the last time copied, or sent back to a round, by the same request.

    Args:
        history: the entries of the run, or of the copy; oldest first.
        request: what is asked for.
        copy_of: of which run a copy is asked for; None: a way back.
    """
    for entry in reversed(history):
        if "branch_of" in entry:  # the entries before it are of the run that was copied
            return copy_of is not None and _is_of(entry, request, str(copy_of.absolute()))
        if copy_of is None and "request" in entry:
            return _is_of(entry, request, None)
    return False


def _is_of(entry: Mapping[str, Any], request: Request, copy_of: str | None) -> bool:
    """Whether an entry was made by a request; those of earlier versions do not say."""
    same = entry.get("request") == request.entry["request"]
    return same and entry.get("branch_of") == copy_of
