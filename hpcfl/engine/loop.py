"""The round loop: when a round is evaluated, written and saved, and when a run ends."""

from functools import partial
from time import monotonic
from typing import Any

from hpcfl.clients.error_context import round_errors
from hpcfl.engine.carried import evaluated_point
from hpcfl.engine.requests import local_values
from hpcfl.engine.round import run_round
from hpcfl.engine.round_zero import run_round_zero
from hpcfl.engine.run import Run
from hpcfl.io.signals import stopped
from hpcfl.runs.score_names import OF_SERVER


def run_rounds(run: Run, server: Any, start: int) -> Any:
    """Collective: run the rounds from ``start`` on; returns the server at the end.

    The end is the last round, or one after which ``RunHooks.ends``.

    Raises:
        Stopped: a signal requested a stop; a checkpoint was committed.
        DivergedError: an upload or the server was not finite; nothing of its round was kept.
        HookError, ClientError, StoreError, DiskError, LostFileError: perhaps on one rank only.
    """
    schedule, hooks, timer = run.schedule, run.hooks, run.timer
    timer.start()
    if start == 0:
        server = run_round_zero(run, server)
    saved = monotonic()
    for t in range(start, schedule.rounds):
        timer.mark("write")
        hooks.begin_round(t + 1)
        with round_errors(t + 1):
            values = partial(local_values, run, saved)
            server, record, agreed = run_round(run, server, t, values)
            numbers = run.algorithm.round_numbers(server)
        record |= {OF_SERVER + name: float(value) for name, value in numbers.items()}
        timer.mark("update")
        done, x = t + 1, evaluated_point(run.algorithm, server)
        if schedule.evaluation_due(done):
            with round_errors(done):
                record |= hooks.evaluate(done, x)
            timer.mark("evaluate")
        busy = timer.write_to(record)
        hooks.record(record, busy, x)
        ends = done < schedule.rounds and hooks.ends(done)
        if not agreed.writing:
            hooks.commit_checkpoint(done)
        if ends or agreed.stop or agreed.save or schedule.checkpoint_due(done):
            hooks.begin_checkpoint(done, server)
            run.signals.save, saved = False, monotonic()
        if ends:
            hooks.commit_checkpoint(done)
            return server
        if agreed.stop and done < schedule.rounds:
            hooks.commit_checkpoint(done)
            raise stopped(agreed.stop, done, schedule.rounds)
    hooks.commit_checkpoint(schedule.rounds)
    return server
