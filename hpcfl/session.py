"""One life of a run: from a job or a run directory to the end, a stop or an error."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from hpcfl.assemble import assemble, wire
from hpcfl.beginning import Beginning, Choice, Way, again, anew, as_found
from hpcfl.branch import require_absent
from hpcfl.calibrate import check, chosen
from hpcfl.changes import differences, free
from hpcfl.comm.launch import connect
from hpcfl.comm.together import group, together
from hpcfl.comm.watched import Watched
from hpcfl.compare import flat
from hpcfl.device import device_type
from hpcfl.engine import play
from hpcfl.errors import StoreError
from hpcfl.evaluation import Clients, Evaluation
from hpcfl.job import Loaded
from hpcfl.life import Desk, Life
from hpcfl.progress import Progress, open_progress
from hpcfl.rankmap import Ranks, find
from hpcfl.request import Request
from hpcfl.rundir import RunDir
from hpcfl.signals import Signals, stopped
from hpcfl.store.durable import storing
from hpcfl.types import Record, Vector
from hpcfl.versions import BITS, FAST, versions, warnings


@dataclass(frozen=True)
class Result:
    """What a finished run leaves."""

    path: Path
    """The run directory."""
    rounds: int
    """Rounds completed."""
    x: Vector
    """The final model, flat, on the CPU."""

    @property
    def log(self) -> list[Record]:
        """One object a round, from log.jsonl."""
        return [json.loads(line) for line in (self.path / "log.jsonl").read_text().splitlines()]


def start(loaded: Loaded, out: Path | None = None, *, continued: bool = False) -> Result:
    """Begin a run in a directory of its own; collective if a launcher started several ranks.

    Args:
        loaded: the checked job.
        out: the run directory; runs/NAME when absent.
        continued: go on where the directory holds a checkpoint of this job.

    Raises:
        JobError: nothing was trained.
        DivergedError, Stopped: see ``hpcfl.engine.play``.
    """
    folder = RunDir(out or Path("runs") / loaded.name)
    choose = partial(as_found, folder) if continued else _always(Way(anew, resumed=False))
    return _live(loaded, folder, choose)


def resume(
    root: Path,
    overrides: Sequence[str] = (),
    *,
    out: Path | None = None,
    round: int | None = None,
    verify: bool = True,
) -> Result:
    """Take up a run again from a checkpoint, on any number of ranks; collective.

    Args:
        root: the run directory.
        overrides: ``key.path=value`` settings over the job's, which change no past round.
        out: go on there, in a copy; the run in ``root`` is left as it is, and may be alive.
        round: which checkpoint; the newest when None.  Later ones are given up.
        verify: read all client states first; else each one when it is first used.

    Raises:
        JobError: the directory holds no run, one that is alive, or not that round, or a setting
            would change past rounds; ``out`` exists.
        StoreError: the checkpoint or a store is damaged.
        DivergedError, Stopped: see ``hpcfl.engine.play``.
    """
    request = Request.of(RunDir(root), overrides, round=round, rows=verify)
    if out is not None:
        require_absent(out)
    way = Way(partial(again, request=request), resumed=True)
    return _live(request.loaded, RunDir(out or root), _always(way))


def _always(way: Way) -> Choice:
    return lambda comm: way


def _live(loaded: Loaded, folder: RunDir, choose: Choice) -> Result:
    """Collective: make the parts, begin the way that is chosen, play to the end."""
    config = loaded.job.comm
    connected = connect(config.backend, device_type(loaded.job), config.timeout_s)
    comm = Watched(connected, config.timeout_s)
    with (
        group(comm),
        Signals() as signals,  # after MPI's start, which takes SIGUSR1 for itself
        folder,
    ):
        ranks = find(loaded, folder.root, comm)
        way = choose(comm)
        with together(comm):
            if comm.rank == 0:
                loaded.job.log.check()
                loaded.job.data.fetch()
                if not way.resumed:
                    loaded.job.model.fetch()
        with together(comm):
            parts = assemble(loaded, ranks.device, resumed=way.resumed)
            check(parts)
        if parts.job.executor == "auto":
            parts, line = chosen(parts, comm, folder if way.resumed else None)
            ranks = replace(ranks, told=[*ranks.told, line])
        with closing(Life(parts, folder, comm)) as life:
            x = _play(life, ranks, way.begin(life), signals)
        return Result(folder.root, parts.job.rounds, x)


def _play(life: Life, ranks: Ranks, beginning: Beginning, signals: Signals) -> Vector:
    """Collective: play to the end; the final model."""
    parts, folder, comm = life.parts, life.folder, life.comm
    done = beginning.round
    gradient = parts.gradient()
    clients = Clients(
        parts.population,
        np.flatnonzero(life.owner == comm.rank).tolist(),
        parts.weights,
        partial(parts.own_model, life.store),
    )
    evaluation = Evaluation(
        parts.job.evaluate, gradient, parts.dataset, parts.tests(), clients, comm
    )
    with (
        open_progress(folder.root.name, parts.job.rounds, done, comm.rank) as progress,
        Desk(life, evaluation, progress, done) as desk,
    ):
        finished = done == parts.job.rounds
        progress.note(f"{folder.root}: finished, nothing to do" if finished else life.opening(done))
        for line in ranks.told:
            progress.note(line)
        if comm.rank == 0:
            with storing(folder.history):
                _note(life, ranks, done, progress)
        run = wire(parts, comm, life.owner, life.store, gradient, desk, signals)
        run.observer.restore(beginning.kept)
        if not finished:  # a signal came during the start-up: the checkpoint of the start stands
            stop = int(comm.max(np.array([signals.stop], dtype=np.float64))[0])
            if stop:
                raise stopped(stop, done, parts.job.rounds)
        try:
            server = play(run, beginning.server, done)
        except StoreError as e:
            e.exit_code = 1  # 2 says that nothing was trained
            raise
    final: Vector = server.x.cpu()
    return final


def _note(life: Life, ranks: Ranks, done: int, progress: Progress) -> None:
    """Write this start into the history, and tell what changed since the last."""
    folder, job = life.folder, life.parts.loaded
    before = folder.last_start
    settings = free(flat(job.tree))
    facts = {"ranks": life.comm.size, "summed_by": life.comm.library}
    facts |= versions(ranks.device)
    keys = (*BITS, *FAST) if job.job.reduction == "fast" else BITS
    for warning in warnings(before, facts, keys):
        progress.note(warning)
    known = before.get("settings", {})
    changes = [
        {"key": key, "before": known[key], "after": value}
        for key, value in differences(known, settings).items()
    ]
    for change in changes:
        progress.note("{key} was {before}, is {after} ".format(**change) + f"after round {done}")
    folder.note(
        {
            "life": life.name,
            "round": done,
            **facts,
            "map": [seat.record for seat in ranks.seats],
            "told": list(ranks.told),
            "settings": settings,
            "changes": changes,
        }
    )
