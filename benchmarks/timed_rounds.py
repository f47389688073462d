"""Build a job's run without evaluation and checkpoints, and time its rounds, a few at a time."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from hpcfl.clients.assignment import assign_owners
from hpcfl.comm.base import Comm
from hpcfl.comm.solo import Solo
from hpcfl.engine.loop import run_rounds
from hpcfl.engine.run import CheckpointState, Run
from hpcfl.io.signals import Signals
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.log import RunLog
from hpcfl.start.build_run import build_run
from hpcfl.start.components.build import build_components
from hpcfl.start.components.components import Components
from hpcfl.start.device import device_of, gpu_rank, keep_freed_memory
from hpcfl.types import Record, Vector

Clock = Callable[[], float]


class LogOnly:
    """The engine's hooks of a run that writes its log, and evaluates and commits nothing."""

    checkpoint_state = CheckpointState(writing=False)

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self.waited = 0.0
        """Seconds that the rounds waited for client states."""

    def begin_round(self, round: int) -> None:
        """Do nothing."""

    def evaluate(self, round: int, x: Vector) -> Record:
        """Return no scores."""
        return {}

    def record(self, record: Record, busy: Sequence[float], x: Vector) -> None:
        """Write the line of a round."""
        self.waited += record.get("store_s", 0.0)
        self._log.write(record)

    def ends(self, round: int) -> bool:
        """Return False: all rounds are timed."""
        return False

    def begin_checkpoint(self, round: int, server: Any) -> None:
        """Commit nothing."""

    def commit_checkpoint(self, round: int) -> None:
        """Commit nothing."""


class TimedRounds:
    """Runs a number of rounds in each call.

    Args:
        run: the run.
        rounds: how many each call runs.
        clock: returns seconds.
    """

    def __init__(self, run: Run, rounds: int, clock: Clock = perf_counter) -> None:
        self._run, self._turn, self._done, self._clock = run, rounds, 0, clock
        self._server = run.algorithm.init_server(run.x0)

    @property
    def x(self) -> Vector:
        """The model so far."""
        return self._server.x  # type: ignore[no-any-return]

    def __call__(self) -> float:
        """Run the next rounds; return the seconds that they took."""
        end = self._done + self._turn
        began = self._clock()
        schedule = replace(self._run.schedule, rounds=end)
        self._server = run_rounds(replace(self._run, schedule=schedule), self._server, self._done)
        self._done = end
        return self._clock() - began


class TimedRun(NamedTuple):
    """A job with its data loaded, ready for rounds."""

    components: Components
    run: Run
    hooks: LogOnly
    """Its ``waited`` has the seconds that rounds waited for client states."""


def build_timed_run(
    loaded: LoadedJob, folder: Path, stack: ExitStack, comm: Comm | None = None
) -> TimedRun:
    """Load a job for rounds on this rank alone, or on one of a group.

    Args:
        loaded: the job.
        folder: an empty folder, for the log and the client states.
        stack: closes the log and the store.
        comm: the group; none is needed for one rank.
    """
    comm = comm or Solo()
    components = build_components(loaded, device_of(loaded.job, gpu_rank(loaded.job, comm)))
    owner = assign_owners([len(own) for own in components.population.rows], comm.size)
    hooks = LogOnly(stack.enter_context(closing(RunLog(folder / "log.jsonl"))))
    mine = [client for client, rank in enumerate(owner) if rank == comm.rank]
    store = stack.enter_context(closing(components.store(folder, comm.rank, "bench", mine)))
    run = build_run(components, comm, owner, store, components.gradient(), hooks, Signals())
    keep_freed_memory()  # as the rounds of a run
    return TimedRun(components, run, hooks)
