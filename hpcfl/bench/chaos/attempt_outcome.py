"""Run one attempt to its end, or kill it, and classify how it ended."""

import re
import time
from collections.abc import Sequence
from signal import SIGKILL
from typing import Literal, NamedTuple

from hpcfl.bench.chaos.attempt import PATIENCE_S, Attempt
from hpcfl.bench.chaos.kill import Kill, strace_command, was_killed_at_call
from hpcfl.bench.chaos.watch import AttemptMonitor, PhaseDurations, RoundsSeen
from hpcfl.run_dir.layout import RunDir

POLL_S = 0.002
_LINE = re.compile(r"\w+Error: .+")  # the line with the reason why a run was refused


class Ending(NamedTuple):
    """How an attempt ended."""

    kind: Literal["killed", "stopped", "finished", "refused", "wrong"]
    name: str = ""
    """A description of the kill or stop, or of the fault."""
    phase: str = ""
    """Its phase when it was killed or stopped."""
    seen: RoundsSeen = RoundsSeen()


class Start(NamedTuple):
    """How an attempt is started."""

    ranks: int
    arguments: Sequence[str]
    """Of hpcfl."""
    refusable: bool
    """Whether there may be no checkpoint to resume from, so that a refusal is no failure."""


def run_attempt(
    start: Start, kill: Kill | None, folder: RunDir, durations: PhaseDurations, keep: int
) -> Ending:
    """Start an attempt, kill it as ``kill`` describes unless it ends earlier, and classify its end.

    Args:
        start: of the attempt.
        kill: None to let it run to its end.
        folder: the run directory.
        durations: the durations of the phases so far, which are updated.
        keep: checkpoints that the run keeps.
    """
    log, trace = (folder.root.with_name(f"{folder.root.name}.{end}") for end in ("log", "strace"))
    trace.unlink(missing_ok=True)
    before = strace_command(kill, trace) if kill and kill.exact else []
    traced = kill.rank(start.ranks) if kill else 0
    with Attempt(start.ranks, start.arguments, log, before, traced) as attempt:
        watch = AttemptMonitor(attempt, folder, durations)
        while attempt.code is None and not (kill and watch.due(kill)):
            watch.poll()
            if watch.hangs:
                return Ending("wrong", f"an attempt that did nothing for {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)
        killed_by = ""
        if attempt.code is None and kill:
            kill = kill._replace(at="round", victim=None) if kill.exact else kill
            pids = attempt.ranks() or attempt.processes()
            first = kill.rank(len(pids))
            killed_by = kill.name if pids else ""  # it may have ended just now
            attempt.kill(pids if kill.victim is None else pids[first : first + 1], kill.signal)
        if attempt.has_survivors():
            return Ending("wrong", f"processes that outlived a rank by {PATIENCE_S:.0f} s")
        watch.end()
        if attempt.code == 0:
            return Ending("finished", seen=watch.seen)
        if kill and kill.exact and was_killed_at_call(trace):
            killed_by = kill.name
        if killed_by and kill and kill.signal != SIGKILL:
            fault = fault_of_stop(attempt, watch.seen)
            if fault:
                return Ending("wrong", f"{fault}, after {killed_by}")
            return Ending("stopped", killed_by, watch.phase(keep), watch.seen)
        if killed_by:
            return Ending("killed", killed_by, watch.phase(keep), watch.seen)
        return _by_itself(attempt, refusable=start.refusable)


def fault_of_stop(attempt: Attempt, seen: RoundsSeen) -> str:
    """The fault of a run that got a signal to stop; empty if it stopped correctly."""
    if any("Traceback" in line for line in attempt.output_lines()):
        return "a traceback"
    # Before MPI has started, the exit code may be the launcher's.
    if seen.began is not None and attempt.code != 75:
        return f"exit code {attempt.code} where 75 was expected"
    return ""


def _by_itself(attempt: Attempt, *, refusable: bool) -> Ending:
    """Classify the end of an attempt that was not killed.

    Without a checkpoint, one clear error with exit code 2 is a correct refusal.
    """
    lines = attempt.output_lines()
    errors = [line for line in lines if _LINE.match(line)]
    clear = attempt.code == 2 and len(errors) == 1 and not any("Traceback" in w for w in lines)
    last = errors or [line for line in lines if line] or ["nothing"]
    if clear and refusable:
        return Ending("refused", errors[0])
    return Ending(
        "wrong", f"exit code {attempt.code} of an attempt that was to resume, saying: {last[-1]}"
    )
