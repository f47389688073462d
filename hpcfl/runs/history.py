"""How each start of a run ended, in its history; a start that was killed has no outcome there."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, cast, get_args

from hpcfl.errors import DivergedError, RemoteRankError, Stopped, one_line
from hpcfl.runs.layout import RunDir, last_start
from hpcfl.runs.run_score import OwnModels, TestedOn, Trained

Ending = Literal["finished", "finished early", "stopped", "diverged", "failed"]
ENDINGS: tuple[Ending, ...] = get_args(Ending)


State = Literal["alive", "not running", "unfinished"] | Ending


class Outcome(NamedTuple):
    """How a start of a run ended."""

    ending: Ending
    round: int
    """The round that it had reached, counted as the log does."""
    message: str
    """The last line that it printed; empty if it finished, and why if it did early."""


def outcome_of(error: BaseException, round: int) -> Outcome:
    """The outcome of a start that ends by ``error``, of this rank or another."""
    code = getattr(error, "exit_code", None)
    if isinstance(error, KeyboardInterrupt):
        return Outcome("stopped", round, f"stopped by Ctrl-C in round {round}")
    if code == Stopped.exit_code:
        return Outcome("stopped", round, str(error))
    if code == DivergedError.exit_code:
        return Outcome("diverged", round, str(error))
    if isinstance(error, RemoteRankError):  # its text names the error of the other rank already
        return Outcome("failed", round, str(error))
    return Outcome("failed", round, one_line(f"{type(error).__name__}: {error}"))


def state_of(
    done: int, rounds: int, outcome: Outcome | None, *, alive: bool | None, failed: bool
) -> State:
    """What a run is now, as status, reports and sweeps say it; ``RunRecord.state`` asks here.

    Args:
        done: rounds in its log.
        rounds: of its job.
        outcome: of its newest start, see ``last_outcome``.
        alive: whether a process uses its directory; None: nobody asked.
        failed: whether the sweep that made it saw it fail last.
    """
    if alive:
        return "alive"
    if done >= rounds:
        return "finished"
    if ended_early(done, outcome):
        return "finished early"
    if alive is None and not failed:
        return "unfinished"
    if failed and (outcome is None or outcome.ending != "diverged"):
        return "failed"
    # Finished, but with a shorter log: it was cut, or the job was given more rounds since.
    if outcome is None or outcome.ending in ("finished", "finished early"):
        return "not running"
    return outcome.ending


def ended_early(done: int, outcome: Outcome | None) -> bool:
    """Whether a run ended before its last round, by its scores or a callback.

    Args:
        done: rounds in its log.
        outcome: of its newest start.
    """
    return outcome is not None and outcome.ending == "finished early" and outcome.round == done


def record_outcome(folder: RunDir, session_id: str, outcome: Outcome) -> bool:
    """Add the outcome of a session to the history; False if the history has no such session.

    Raises:
        StoreError: the history is damaged, or cannot be written.
    """
    # Read again: the run may have lasted for days since it was read under the lock.
    entries = folder.read_history()
    for entry in entries:
        if entry.get("session") == session_id:
            entry["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
            entry["outcome"] = outcome._asdict()
            folder.write_history(entries)
            return True
    return False


def last_outcome(history: Sequence[Mapping[str, Any]]) -> Outcome | None:
    """How the newest start ended; None if it is running, was killed, or is of another directory.

    Args:
        history: the entries, oldest first.
    """
    for entry in reversed(history):
        if "branch_of" in entry:  # the entries before it are of the run that was copied
            return None
        if "session" in entry:
            return _outcome(entry.get("outcome"))
    return None


def recorded_machines(history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The ranks and devices of all starts: "2 ranks on cpu (AMD EPYC 7B13)"; each once, in order.

    The rounds in the log of a copied run are also those of the run that it was copied from, whose
    starts are in the history too.  A start of an earlier version that recorded no device is left
    out.
    """
    machines: dict[str, None] = {}
    for entry in history:
        ranks, device = entry.get("ranks"), entry.get("device")
        if "session" in entry and type(ranks) is int and isinstance(device, str):
            model = entry.get("gpu") or entry.get("processor")
            named = f" ({one_line(model)})" if isinstance(model, str) else ""
            machines[f"{ranks} rank{'s' if ranks > 1 else ''} on {one_line(device)}{named}"] = None
    return tuple(machines)


def recorded_guess(history: Sequence[Mapping[str, Any]]) -> float | None:
    """The loss of guessing, in the newest start's entry; see ``hpcfl.runs.divergence``."""
    found = last_start(history).get("guess_loss")
    return float(found) if isinstance(found, int | float) else None


def recorded_own_models(
    history: Sequence[Mapping[str, Any]], by_job: OwnModels | None
) -> OwnModels | None:
    """What the newest start says of the clients' own models; None if the method makes none.

    ``by_job``: what the job tells, of a start of an earlier version, which does not say it.
    """
    start = last_start(history)
    found = start.get("own_models")
    if "own_models" in start and found is None:
        return None
    if not isinstance(found, Mapping) or found.get("x") not in get_args(Trained):
        return by_job
    tested_on = found.get("tested_on")
    return OwnModels(tested_on if tested_on in get_args(TestedOn) else None, found["x"])


def recorded_init(history: Sequence[Mapping[str, Any]]) -> str | None:
    """The digest of the file of ``model.init`` at the first start, if there was one."""
    first = next((entry for entry in history if "session" in entry), {})
    found = first.get("init")
    return found if isinstance(found, str) else None


def recorded_code(history: Sequence[Mapping[str, Any]], done: int) -> tuple[Mapping[str, str], ...]:
    """The digests of the user's modules, of each start that computed rounds up to ``done``.

    Starts whose rounds a later one computed again are left out, and those that found nothing to do.
    ``hpcfl.start.code_digests`` makes the digests.
    """
    starts: list[Mapping[str, Any]] = []
    for entry in history:
        if "session" in entry:
            starts = [start for start in starts if _begun_at(start) < _begun_at(entry)] + [entry]
    # The first start made the initial model, round 0.
    found = (start.get("code") for start in starts if _begun_at(start) < max(done, 1))
    return tuple(code for code in found if code and isinstance(code, Mapping))


def _begun_at(start: Mapping[str, Any]) -> int:
    """The rounds that were done when a start began."""
    return int(start.get("round", 0))


def _outcome(found: object) -> Outcome | None:
    """Parse an outcome; None if there is none, as in the history of earlier versions."""
    if not isinstance(found, Mapping):
        return None
    ending, round, message = (found.get(key) for key in Outcome._fields)
    if ending not in ENDINGS or type(round) is not int or not isinstance(message, str):
        return None
    return Outcome(cast(Ending, ending), round, one_line(message))
