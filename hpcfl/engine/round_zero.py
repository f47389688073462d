"""Do what comes before the first round: a warm start, and a score of the initial model."""

from functools import partial
from time import monotonic
from typing import Any

import torch

from hpcfl.clients.error_context import client_errors, round_errors
from hpcfl.engine.carried import evaluated_point
from hpcfl.engine.dry_round import nbytes
from hpcfl.engine.full_gradients import plain_mean
from hpcfl.engine.hook_rules import require_form
from hpcfl.engine.requests import RoundRequests, local_values
from hpcfl.engine.run import Run
from hpcfl.io.signals import stopped
from hpcfl.local.joined import at_statistics, split
from hpcfl.runs.log_keys import SIMULATED
from hpcfl.types import Record


def run_round_zero(run: Run, server: Any) -> Any:
    """Collective: the server after the warm start, if there is one; evaluate the initial model.

    Raises:
        Stopped, DivergedError, HookError, ClientError, StoreError, DiskError: see ``warm_start``.
    """
    record: Record = {"round": 0}
    evaluated = run.schedule.evaluation_due(0)
    with round_errors(0):
        if run.algorithm.warm_start:
            server, found = warm_start(run, server)
            record |= found
        if evaluated:
            record |= run.hooks.evaluate(0, evaluated_point(run.algorithm, server))
            run.timer.mark("evaluate")
    if run.clock is not None:
        record[SIMULATED] = 0.0
    if evaluated or run.algorithm.warm_start:
        busy = run.timer.write_to(record)
        run.hooks.record(record, busy, evaluated_point(run.algorithm, server))
    return server


def warm_start(run: Run, server: Any) -> tuple[Any, Record]:
    """Collective: take every client's full gradient at the initial model, for its first state.

    Clients are taken in groups, in the order of their numbers.  The means of the groups are exact
    and are added in this order in float64, so that the bits do not depend on the number of ranks.
    Nothing is kept of a pass that is interrupted: a resume begins it again.

    Args:
        run: the objects of the run.
        server: the initial one.

    Returns:
        The server before the first round, and the traffic and times of the pass, for the log.

    Raises:
        Stopped: a signal requested a stop.
        ClientError, StoreError, DiskError: on this rank alone.
        DivergedError: a gradient is not finite.
    """
    training, algorithm, timer, x0 = run.training, run.algorithm, run.timer, run.x0
    run.hooks.begin_round(0)
    population = len(training.clients)
    received = at_statistics(x0, split(server).statistics)
    record: Record = {"down_bytes": population * nbytes(received), "up_bytes": 0}
    values = partial(local_values, run, monotonic())
    total = torch.zeros_like(x0, dtype=torch.float64)
    groups, planned = run.warm_start_groups, run.schema.state
    for group, size in enumerate(groups.sizes):
        mine, upcoming = groups.assignment(group), groups.assignment(group + 1)
        training.clients.prefetch([*mine.trained, *upcoming.trained])
        # The log counts the pass as round 0, and so do errors, which count from the task's round.
        tasks = [training.clients.task(i, 0)._replace(round=-1) for i in mine.trained]
        timer.mark("sample")
        gradients = [own for (own,) in training.executor.full_gradients((x0,), tasks)]
        timer.mark("compute")
        mean, up, maxima = plain_mean(run, gradients, mine.trained, size, 0, values)
        total += size * mean.double()
        record["up_bytes"] += up
        states = []
        for task, gradient in zip(tasks, gradients, strict=True):
            with client_errors(task, "init_client"):
                state = groups.first_state(task.client_id, gradient)
                require_form(
                    algorithm, "init_client", "a state", state, "in the dry round", planned
                )
            states.append(state)
        training.states.save(mine, states, x0)
        timer.mark("write")
        # After the last group the first round takes the signal: the pass need not be repeated.
        if (stop := RoundRequests.of(maxima).stop) and group + 1 < len(groups.sizes):
            raise stopped(stop, 0, run.schedule.rounds)
    record["store_s"] = training.states.pop_elapsed_s()
    init_server: Any = algorithm.init_server  # which takes a gradient, as there is a warm start
    after = init_server(x0, (total / population).to(x0.dtype))
    require_form(algorithm, "init_server", "a server", after, "without a gradient", server)
    return after, record
