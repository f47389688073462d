"""One life of a run: from a job or a run directory to the end, a stop or an error."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from hpcfl.comm.connect import connect
from hpcfl.comm.failure import group, raise_collectively
from hpcfl.comm.watched import Watched
from hpcfl.data.fingerprints import Fingerprints, require_alike
from hpcfl.engine.loop import play
from hpcfl.errors import DiskError, StoreError
from hpcfl.evaluation import Clients, Evaluation
from hpcfl.evaluation.divergence import find_divergence, guess_loss
from hpcfl.io.atomic import write_errors
from hpcfl.io.progress import Progress, open_progress
from hpcfl.job.registry import of_main
from hpcfl.job.resume_rules import differences, free
from hpcfl.job.schema import Loaded
from hpcfl.job.settings import flat
from hpcfl.run_dir.history import Outcome, outcome_of, record_outcome
from hpcfl.run_dir.layout import RunDir
from hpcfl.run_dir.log import LogReader
from hpcfl.runner.choose_executor import check, chosen
from hpcfl.runner.components import assemble, wire
from hpcfl.runner.copy_run import require_absent
from hpcfl.runner.device import bfloat16_warning, device_type
from hpcfl.runner.environment import BITS, FAST, versions, warnings
from hpcfl.runner.initial import fetch_data, fetch_model
from hpcfl.runner.life import Desk, RankSession
from hpcfl.runner.preflight import try_classes
from hpcfl.runner.rank_layout import Ranks, find
from hpcfl.runner.resume_request import ResumeRequest
from hpcfl.runner.start import Beginning, Choice, Way, again, anew, as_found
from hpcfl.signals import Signals, set_resumable, stopped
from hpcfl.types import Record, Vector


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
        return [dict(entry) for entry in LogReader(self.path / "log.jsonl").read()]


def start(loaded: Loaded, out: Path | None = None, *, continued: bool = False) -> Result:
    """Begin a run in a directory of its own; collective if a launcher started several ranks.

    Args:
        loaded: the checked job.
        out: the run directory; runs/NAME when absent.
        continued: go on where the directory holds a checkpoint of this job.

    Raises:
        JobError: nothing was trained.
        DivergedError, Stopped: see ``hpcfl.engine.loop.play``.
    """
    folder = RunDir(out or Path("runs") / loaded.name)
    set_resumable(folder.root if continued else None)
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
        DivergedError, Stopped: see ``hpcfl.engine.loop.play``.
    """
    set_resumable(out or root)
    request = ResumeRequest.of(RunDir(root), overrides, round=round, rows=verify)
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
        # After MPI's start, which takes SIGUSR1 for itself.
        Signals(latch_interrupt=False) as signals,
        folder,
    ):
        ranks = find(loaded, folder.root, comm)
        ranks = replace(ranks, notes=[*ranks.notes, *of_main(loaded.tree)])
        way = choose(comm)
        with raise_collectively(comm):
            if comm.rank == 0:
                loaded.job.log.check()
                fetch_data(loaded)
                if not way.resumed:
                    fetch_model(loaded)
        with raise_collectively(comm):
            with Fingerprints(loaded.job.data, loaded.job.cohort) as fingerprints:
                parts = assemble(loaded, ranks.device, resumed=way.resumed)
                inputs = fingerprints.of(parts.dataset)
            try_classes(parts)
            check(parts)
        require_alike(inputs, comm)
        if parts.job.executor == "auto":
            parts, line = chosen(parts, comm, folder if way.resumed else None)
            ranks = replace(ranks, notes=[*ranks.notes, line])
        # Rank 0 alone speaks, so it alone measures.
        slow = bfloat16_warning(parts.job, ranks.device) if comm.rank == 0 else None
        if slow:
            ranks = replace(ranks, notes=[*ranks.notes, slow])
        with closing(RankSession(parts, folder, comm, inputs)) as life:
            beginning = way.begin(life)
            signals.latch_interrupt = True  # a checkpoint stands, and rounds are added to it
            x = _play(life, ranks, beginning, signals)
        return Result(folder.root, parts.job.rounds, x)


def _play(life: RankSession, ranks: Ranks, beginning: Beginning, signals: Signals) -> Vector:
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
        _recorded(life),
        Desk(life, evaluation, progress, done) as desk,
    ):
        finished = done == parts.job.rounds
        progress.note(f"{folder.root}: finished, nothing to do" if finished else life.opening(done))
        for line in (*ranks.notes, *parts.dataset.notes):
            progress.note(line)
        if comm.rank == 0:
            with write_errors(folder.history):
                _note(life, ranks, done, progress)
        run = wire(parts, comm, life.owner, life.store, gradient, desk, signals)
        run.observer.restore(beginning.kept)
        if not finished:  # a signal came during the start-up: the checkpoint of it stands
            stop = int(comm.allreduce_max(np.array([signals.stop], dtype=np.float64))[0])
            if stop:
                raise stopped(stop, done, parts.job.rounds)
        try:
            server = play(run, beginning.server, done)
        except StoreError as e:
            life.require_in_place()  # where that is the reason, it says what is gone
            e.exit_code = 1  # 2 says that nothing was trained
            raise
        if comm.rank == 0 and not finished:
            _warn_of_divergence(life, progress)
    final: Vector = server.x.cpu()
    return final


@contextmanager
def _recorded(life: RankSession) -> Iterator[None]:
    """Write down how this start ends, on rank 0; `hpcfl status` says it."""
    outcome = Outcome("finished", life.parts.job.rounds, "")
    try:
        yield
    except BaseException as e:
        outcome = outcome_of(e, life.comm.pulse.round)
        raise
    finally:
        if life.comm.rank == 0:
            try:
                recorded = record_outcome(life.folder, life.name, outcome)
                if (
                    not recorded and outcome.ending != "failed"
                ):  # else it failed before it was noted
                    sys.stderr.write(
                        f"{life.folder.history}: says nothing of this start any more: the file was "
                        "deleted or replaced while the run was alive\n"
                    )
            except (StoreError, DiskError) as e:  # the end itself, and its exit code, matter more
                sys.stderr.write(f"the history does not say how this start ended: {e}\n")


def _warn_of_divergence(life: RankSession, progress: Progress) -> None:
    """Say it if the run diverged though all its numbers are finite."""
    root = life.folder.root
    try:
        log = LogReader(life.folder.log).read()
    except (StoreError, DiskError) as e:  # all rounds are done and kept: the run did not fail
        progress.note(f"warning: whether the run diverged is not known: {e}")
        return
    found = find_divergence(log, guess_loss(life.parts.dataset))
    if found is not None:
        progress.note(
            f"warning: {root}: diverged: {found}. Lower local.lr or algorithm.server_lr, or set "
            "local.clip"
        )


def _note(life: RankSession, ranks: Ranks, done: int, progress: Progress) -> None:
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
            "told": list(ranks.notes),
            "guess_loss": guess_loss(life.parts.dataset),
            "settings": settings,
            "changes": changes,
        }
    )
