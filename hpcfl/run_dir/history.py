"""How the starts of a run ended, from its history; a start that was killed left nothing there."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, cast

from hpcfl.errors import DivergedError, RemoteRankError, Stopped, one_line
from hpcfl.run_dir.layout import RunDir

Ending = Literal["finished", "stopped", "diverged", "failed"]
ENDINGS: tuple[Ending, ...] = ("finished", "stopped", "diverged", "failed")


class Outcome(NamedTuple):
    """How a start of a run ended."""

    ending: Ending
    round: int
    """The round that it was at, counted as the log does."""
    message: str
    """What it said last; empty of a finished one."""


def outcome_of(error: BaseException, round: int) -> Outcome:
    """The outcome of a start that an error ends, also one of another rank."""
    code = getattr(error, "exit_code", None)
    if isinstance(error, KeyboardInterrupt):
        return Outcome("stopped", round, f"stopped by Ctrl-C in round {round}")
    if code == Stopped.exit_code:
        return Outcome("stopped", round, str(error))
    if code == DivergedError.exit_code:
        return Outcome("diverged", round, str(error))
    if isinstance(error, RemoteRankError):  # whose text is the other rank's line
        return Outcome("failed", round, str(error))
    return Outcome("failed", round, one_line(f"{type(error).__name__}: {error}"))


def record_outcome(folder: RunDir, session: str, outcome: Outcome) -> bool:
    """Add its outcome to a start in the history; whether the history tells of the start.

    Raises:
        StoreError: the history is damaged, or cannot be written.
    """
    entries = folder.history_entries()
    for entry in entries:
        if entry.get("life") == session:
            entry["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
            entry["outcome"] = outcome._asdict()
            folder.write_history(entries)
            return True
    return False


def last_outcome(history: Sequence[Mapping[str, Any]]) -> Outcome | None:
    """How the newest start ended; None where it is alive, was killed, or is of another directory.

    Args:
        history: its objects, oldest first.
    """
    for entry in reversed(history):
        if "branch_of" in entry:  # what stands before it was copied
            return None
        if "life" in entry:
            return _outcome(entry.get("outcome"))
    return None


def recorded_guess(history: Sequence[Mapping[str, Any]]) -> float | None:
    """The loss of guessing in the newest start's line, see ``hpcfl.evaluation.divergence``."""
    starts = [entry for entry in history if "life" in entry]
    found = starts[-1].get("guess_loss") if starts else None
    return float(found) if isinstance(found, int | float) else None


def _outcome(found: object) -> Outcome | None:
    """An outcome as it is written; None where it is not, as in the history of earlier versions."""
    if not isinstance(found, Mapping):
        return None
    ending, round, message = (found.get(key) for key in Outcome._fields)
    if ending not in ENDINGS or type(round) is not int or not isinstance(message, str):
        return None
    return Outcome(cast(Ending, ending), round, one_line(message))
