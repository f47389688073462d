"""Call the user's callbacks on rank 0, so that no result depends on them."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from hpcfl import seeds
from hpcfl.errors import DiskError, HookError, as_disk_error, described, traceback_hint
from hpcfl.models.flat_vector import layout_of, load
from hpcfl.models.statistics import load_statistics
from hpcfl.types import Record, Vector
from hpcfl.user_code.generators import seeded
from hpcfl.user_code.process_settings import settings_restored


class RunStart(NamedTuple):
    """Facts about the run, for ``Callback.start``."""

    directory: Path
    """The run directory."""
    job: Mapping[str, Any]
    """The job with all defaults, as in job.yaml."""
    round: int
    """How many are completed; at a resume, those of its checkpoint."""
    rounds: int
    """T, the rounds of the run."""
    ranks: int
    """How many there are; this is rank 0."""


class RoundModel:
    """The global model after a round; it is copied when a callback asks for it.

    Args:
        point: [P] its parameters, or [P + Q] with its running statistics behind them.
        module: the module that has such parameters, with its buffers, in training mode.
    """

    def __init__(self, point: Vector, module: nn.Module) -> None:
        self._point, self._module = point.detach(), module

    def vector(self) -> Vector:
        """All parameters, flat, [P]: a copy on the CPU."""
        return self._point[: layout_of(self._module).total].to("cpu", copy=True)

    def module(self) -> nn.Module:
        """The torch module: a copy on the CPU, in evaluation mode and without gradients."""
        made = copy.deepcopy(self._module).cpu()
        size = layout_of(made).total
        load(made, self._point[:size])
        if len(self._point) > size:
            load_statistics(made, self._point[size:])
        return made.eval().requires_grad_(False)


class Callback:
    """Base of the classes that ``callbacks`` of a job names, and of objects for ``hpcfl.run``.

    All methods are called on rank 0 alone, while the other ranks wait.  Nothing that they do to
    their arguments changes the run.  An exception ends the run as failed, and so does ``sys.exit``.
    """

    def start(self, run: RunStart) -> None:
        """Called before the first round of every start, also of a run that is finished already."""

    def round(self, record: Record, model: RoundModel) -> bool | None:
        """Called after every round, when its line is in the log.

        True ends the run after this round, with a checkpoint, as finished; True after round 0 ends
        it after round 1.

        A resume runs the rounds after its checkpoint again, and calls this again for them.

        Args:
            record: the round's line of log.jsonl, less what it says of single ranks.  That of
                round 0, the initial model, has scores alone, and a round without clients no loss.
            model: the global model after the round.
        """
        return None

    def end(self, status: str) -> None:
        """Called when this start ends, unless it is killed.

        Args:
            status: "finished", "stopped" by a signal, "diverged" or "failed".
        """


HOOKS = ("start", "round", "end")


class Callbacks:
    """The callbacks of one start of a run, on rank 0.

    Args:
        named: each with the name that error messages give it.
        seed: of the job.
    """

    def __init__(self, named: Sequence[tuple[str, Callback]], seed: int) -> None:
        self._named, self._seed = named, seed
        self._started: list[int] = []
        self.reason = ""
        """Why the run ends, where a callback says that it does; else empty."""

    def __bool__(self) -> bool:
        return bool(self._named)

    @property
    def names(self) -> list[str]:
        """The name of each."""
        return [name for name, _ in self._named]

    def start(self, run: RunStart) -> None:
        """Tell all that the run starts.

        Raises:
            HookError, DiskError: one of them fails.
        """
        for index, (_, callback) in enumerate(self._named):
            own = run._replace(job=copy.deepcopy(run.job))
            self._call(index, "at the start", callback.start, own)
            self._started.append(index)

    def round(self, record: Record, model: RoundModel) -> None:
        """Give all the log's line of a round, and the model; note who ends the run.

        Raises:
            HookError, DiskError: one of them fails.
        """
        number = int(record["round"])
        for index, (_, callback) in enumerate(self._named):
            when = f"after round {number}"
            ends = self._call(index, when, callback.round, dict(record), model, round=number)
            if ends is True and not self.reason:
                self.reason = f"{self._named[index][0]} asked for it after round {number}"

    def end(self, status: str) -> list[Exception]:
        """Tell those whose start returned that it is over; the errors of those that fail."""
        failures: list[Exception] = []
        for index in self._started:
            try:
                self._call(index, "at the end", self._named[index][1].end, status)
            except Exception as e:  # noqa: BLE001 - the other callbacks must be called, too
                failures.append(e)
        self._started = []
        return failures

    def _call(
        self,
        index: int,
        when: str,
        method: Callable[..., Any],
        *args: Any,
        round: int = seeds.NO_ROUND,
    ) -> Any:
        """Call a method and return its value; draws follow from the seed, round and callback."""
        name, seed = self._named[index][0], seeds.key(self._seed, f"callback {index}", round)
        try:
            with undisturbed(seed):
                return method(*args)
        except (KeyboardInterrupt, DiskError):
            raise
        except BaseException as e:  # also of sys.exit, which would end this rank alone
            if disk := as_disk_error(e):
                raise disk from e
            raise HookError(f"callbacks: {name}: {when}{described(e)}{advice(e)}") from e


@contextmanager
def undisturbed(seed: int) -> Iterator[None]:
    """Leave what rounds depend on as it was before the block, which calls code of a callback.

    Args:
        seed: draws of the block from the process' generators follow from it.
    """
    with seeded(seed), settings_restored():
        yield


def advice(error: BaseException) -> str:
    """What to do about an error of a callback, for the end of its line."""
    if isinstance(error, Exception):
        return traceback_hint()
    return "; to end the run with a checkpoint, return True from round"
