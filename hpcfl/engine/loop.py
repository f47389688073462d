"""The round loop.  Every rank runs it; only comm, store and duty know which rank that is."""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.algorithms.base import Cohort
from hpcfl.engine.run import Run
from hpcfl.engine.schema import Survey, nbytes
from hpcfl.errors import DivergedError
from hpcfl.local.error_context import told
from hpcfl.signals import stopped
from hpcfl.types import Record

# The signal that asked for a stop (0: none), whether a checkpoint is wanted, whether one is on its
# way, whether rounds must wait for that; and, from TOLD on, what the ranks tell for the account.
Asked = NDArray[np.float64]
TOLD = slice(4, None)


def play(run: Run, server: Any, start: int) -> Any:
    """Collective: play the rounds from ``start`` on; returns the server at the end.

    Raises:
        Stopped: a signal asked for it; a checkpoint was committed.
        DivergedError: an upload or the server was not finite; nothing of its round was kept.
        HookError, ClientError, StoreError: on this rank alone, perhaps.
    """
    run.account.start()
    if start == 0 and run.evaluation(0, run.rounds):
        with told(0):
            record: Record = {"round": 0, **run.desk.evaluate(0, server.x)}
        run.account.mark("evaluate")
        run.desk.record(record, run.account.write_to(record))
    saved = monotonic()
    for t in range(start, run.rounds):
        run.account.mark("write")
        run.desk.begin(t + 1)
        try:
            with told(t + 1):
                server, record, asked = play_round(run, server, t, partial(_asked, run, saved))
            run.account.mark("update")
        except DivergedError:
            run.desk.settle(t)
            raise
        done, stop = t + 1, int(asked[0])
        if run.evaluation(done, run.rounds):
            with told(done):
                record |= run.desk.evaluate(done, server.x)
            run.account.mark("evaluate")
        run.desk.record(record, run.account.write_to(record))
        if asked[3] or not asked[2]:
            run.desk.settle(done)
        if stop or asked[1] or run.checkpoint(done, run.rounds):
            run.desk.save(done, server, run.observer.kept)
            run.signals.save, saved = False, monotonic()
        if stop and done < run.rounds:
            run.desk.settle(done)
            raise stopped(stop, done, run.rounds)
    run.desk.settle(run.rounds)
    return server


def play_round(
    run: Run, server: Any, t: int, ask: Callable[[], Asked]
) -> tuple[Any, Record, Asked]:
    """Collective: one round; also the maximum over ranks of what was asked of them by its end."""
    algorithm, account = run.algorithm, run.account
    size = len(members := run.draw(t))
    record: Record = {"round": t + 1, "clients": size, "down_bytes": 0, "up_bytes": 0}
    record["examples"] = int(run.population.taken[members].sum())
    if not size:
        account.mark("sample")
        account.record_wait((asked := run.comm.allreduce_max(ask()))[TOLD])
        return server, record, asked
    mine = run.mine(t)
    surveyed = algorithm.full_gradient != "none"
    run.population.prefetch([*mine * (1 + surveyed), *run.mine(t + 1)])
    weights = [float(run.weights[i]) for i in mine]
    total = float(run.weights[members].sum())
    message = algorithm.broadcast(server)
    record["down_bytes"] += size * nbytes(message)
    visits = [run.population.visit(i, t) for i in mine]
    cohort = Cohort(t, size, len(run.population), run.rate(t), run.x0[:0])
    account.mark("sample")

    if surveyed:
        gradients = run.executor.survey(message.x, visits)
        account.mark("compute")
        common = run.x0[:0]
        if algorithm.full_gradient == "cohort":
            own = [Survey(gradient) for gradient in gradients]
            found = run.surveys.mean(own, mine, weights, total, size, ask(), round=t + 1)
            (common,), up, asked = found
            account.record_wait(asked[TOLD])
            cohort = cohort._replace(grad=common)
            record["up_bytes"] += up
            record["down_bytes"] += size * nbytes(common)
        visits = [
            visit._replace(client=visit.client._replace(full_grad=gradient, cohort_grad=common))
            for visit, gradient in zip(visits, gradients, strict=True)
        ]

    states = run.memories.load(run.duty(t), run.duty(t + 1))
    account.mark("read")
    trained = run.executor.train(message, visits, states, ends=run.observer.ends(t))
    del states  # their memory is for the new ones
    account.mark("compute")
    record["data_s"] = run.population.pop_elapsed_s()
    account.move(record["data_s"], "compute", "read")
    sent = [run.schema.send(end.upload, end.loss) for end in trained]
    mean, up, asked = run.reduction.mean(sent, mine, weights, total, size, ask(), round=t + 1)
    account.record_wait(asked[TOLD])
    record["up_bytes"] += up
    run.memories.save(run.duty(t), [end.state for end in trained], message.x)
    account.mark("write")
    upload, loss = run.schema.receive(mean)
    record |= {"train_loss": float(loss), "store_s": run.memories.pop_elapsed_s()}
    after = _finite(algorithm.update(server, upload, cohort), t + 1)
    record |= run.observer.observe(cohort, message.x, after.x, visits, trained)
    return after, record, asked


def _finite(server: Any, round: int) -> Any:
    """The server, every rank's the same; past models in tuples were looked at in their time."""
    for name, value in zip(server._fields, server, strict=True):
        if isinstance(value, Tensor) and not bool(value.isfinite().all()):
            raise DivergedError(
                f"round {round}: the server's {name!r} is not finite after its step; the last "
                "checkpoint stands. Lower algorithm.server_lr or local.lr"
            )
    return server


def _asked(run: Run, saved: float) -> Asked:
    """What signals and the clock ask of this rank, ``saved`` being when it last checkpointed."""
    late = run.minutes is not None and monotonic() - saved > 60 * run.minutes
    asked = run.signals.stop, run.signals.save or late, *run.desk.pending
    return np.array([*asked, *run.account.local_metrics()])
