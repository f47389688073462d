"""A round: its cohort, their message, their training, the mean of the uploads, the server's step.

Every rank runs it; the clients that it trains, its store and its place in the group alone differ.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hpcfl.algorithms.facts import Cohort
from hpcfl.clients.assignment import NOBODY, Assignment
from hpcfl.clients.draws import drawn
from hpcfl.clients.participation import Participation
from hpcfl.clients.task import ClientTask
from hpcfl.engine.choice import Chosen, choose
from hpcfl.engine.dry_round import Traffic
from hpcfl.engine.full_gradients import LocalValues, take_full_gradients
from hpcfl.engine.hook_rules import broken, require_form
from hpcfl.engine.requests import RoundRequests
from hpcfl.engine.run import Run
from hpcfl.errors import DivergedError
from hpcfl.types import Record, Vector


def run_round(
    run: Run, server: Any, t: int, local_values: LocalValues
) -> tuple[Any, Record, RoundRequests]:
    """Collective: run round ``t``; the server, the line of the log, and the ranks' requests.

    Raises:
        DivergedError: an upload or the server is not finite.
        BrokenRuleError: a hook changed the server in place.
    """
    algorithm, schedule, training, timer = run.algorithm, run.schedule, run.training, run.timer
    counts = change_counts(server)
    participation, assignment, upcoming, chosen = _participation(run, server, t)
    members, steps, wait = participation
    size = len(members)
    record: Record = {"round": t + 1, "clients": size, "down_bytes": 0, "up_bytes": 0}
    if chosen is not None:
        record["candidates"] = chosen.candidates
        _count(record, chosen.traffic)
    record |= training.clients.work_of(members, steps)
    if run.clock is not None and wait is not None:
        record |= run.clock.pass_round(wait)
    cohort = Cohort(t, size, len(training.clients), schedule.local_lr(t), grads=())
    if not size:
        timer.mark("sample")
        maxima = run.comm.allreduce_max(local_values())
        timer.record_wait(RoundRequests.metrics(maxima))
        if algorithm.updates_without_clients:
            zero = run.schema.zero_mean(server.x)
            server = _updated(run, server, counts, zero, cohort)
        return server, record, RoundRequests.of(maxima)
    mine = assignment.trained
    passes = 1 + (algorithm.full_gradient != "none")  # over the examples of a client
    # The reads of this round in their order, full gradients first, and those of the next round.
    training.clients.prefetch([*mine * passes, *upcoming.trained])
    weights = dict(zip(members.tolist(), schedule.weights(t, members).tolist(), strict=True))
    tasks = training.clients.tasks(mine, t, steps)
    timer.mark("sample")
    cohort, tasks, traffic = take_full_gradients(run, server, cohort, tasks, local_values)
    _count(record, traffic)
    message = algorithm.broadcast(server, cohort)
    record["down_bytes"] += size * algorithm.down_bytes(message)
    states = training.states.load(assignment, upcoming)
    timer.mark("read")
    # The old states are let go before the store copies the new ones: all may not fit.
    uploads, states, local_models = _train(run, message, tasks, states, t)
    training.clients.make_ahead(upcoming.trained, t + 1)
    timer.mark("compute")
    record["data_s"] = training.clients.pop_elapsed_s()
    timer.move(record["data_s"], "compute", "read")
    mean, up, maxima = run.uploads.mean(
        uploads,
        mine,
        [weights[i] for i in mine],
        total=sum(weights.values()),
        cohort=size,
        local_values=local_values(),
        round=t + 1,
    )
    timer.record_wait(RoundRequests.metrics(maxima))
    record["up_bytes"] += up
    training.states.save(assignment, states, message.x)
    timer.mark("write")
    upload, loss = run.schema.split_loss(mean)
    record |= {"train_loss": float(loss), "store_s": training.states.pop_elapsed_s()}
    after = _updated(run, server, counts, upload, cohort)
    record |= run.observer.observe(cohort, message, after.x, tasks, local_models)
    return after, record, RoundRequests.of(maxima)


def _train(
    run: Run, message: Any, tasks: Sequence[ClientTask], states: Sequence[Any], t: int
) -> tuple[list[Any], list[Any], list[Vector]]:
    """Train this rank's clients: their uploads, with their losses, their states and local models.

    Each in a list of its own: nothing else holds an upload once the mean has emptied theirs.
    """
    local_models = run.observer.needs_local_models(t)
    results = run.training.executor.train(message, tasks, states, local_models=local_models)
    for task, result in zip(tasks, results, strict=True):
        run.schema.require_form_of(run.algorithm, task, result)
    return (
        [run.schema.with_loss(result.upload, result.loss) for result in results],
        [result.state for result in results],
        [result.local_model for result in results if local_models],
    )


def _count(record: Record, traffic: Traffic) -> None:
    """Add bytes to the line of the log."""
    record["down_bytes"] += traffic.down
    record["up_bytes"] += traffic.up


def _participation(
    run: Run, server: Any, t: int
) -> tuple[Participation, Assignment, Assignment, Chosen | None]:
    """Who takes part in a round, this rank's clients of it, and of the next one as far as known.

    Collective where losses choose; then the choice comes last.
    """
    schedule = run.schedule
    if run.choice is None:
        return schedule.participation(t), schedule.assignment(t), schedule.assignment(t + 1), None
    chosen = choose(run, run.choice, server, t)
    assignment = run.choice.assignment(t, chosen.participation)
    run.training.states.prefetch(assignment.owned)
    return chosen.participation, assignment, NOBODY, chosen


def _updated(run: Run, server: Any, counts: Sequence[int], mean: Any, cohort: Cohort) -> Any:
    """The server after a round with this mean upload; the same on every rank.

    Args:
        run: the run.
        server: before.
        counts: ``change_counts`` of the server at the beginning of the round.
        mean: of the uploads.
        cohort: of the round.

    Raises:
        DivergedError: it is not finite.
        BrokenRuleError: a hook changed the server in place.
    """
    algorithm, seed, t = run.algorithm, run.training.clients.seed, cohort.round
    cohort = cohort._replace(draws=drawn(algorithm.server_draws, server.x, seed, t))
    after = algorithm.update(server, mean, cohort)
    require_form(algorithm, "update", "a server", after, "before", server)
    if change_counts(server) != counts:
        # A checkpoint may be being written from its memory, and the best model may be its x.
        raise broken(
            algorithm,
            "update",
            f"or another hook has changed the server or the message in place in round {t + 1}; "
            "make a new tensor (x = x + 1, not x += 1)",
        )
    _require_finite(after, t + 1)
    return after


def change_counts(server: Any) -> list[int]:
    """How often each tensor of the server was changed in place."""
    return [leaf._version for leaf in tree_leaves(server) if isinstance(leaf, Tensor)]


def _require_finite(server: Any, round: int) -> None:
    """Check the server for non-finite values; past models in tuples were checked before."""
    for name, value in zip(server._fields, server, strict=True):
        if isinstance(value, Tensor) and not _is_finite(value):
            raise DivergedError(
                f"round {round}: the server's {name!r} is not finite after its step; the last "
                "checkpoint stands. Lower algorithm.server_lr or local.lr"
            )


def _is_finite(value: Tensor) -> bool:
    """Whether all numbers are finite; of floats without the masks of ``isfinite``, 7 bytes each."""
    floats = value.is_floating_point() and value.numel() > 0
    ends = torch.stack(torch.aminmax(value)) if floats else value
    return bool(ends.isfinite().all())
