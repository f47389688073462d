"""Record each start of a run in its history: ranks, versions, changed settings, and the outcome."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from hpcfl.data.fingerprints import split_digest
from hpcfl.errors import DiskError, StoreError, one_line
from hpcfl.io import regular
from hpcfl.job.schema import Job
from hpcfl.runs.divergence import find_divergence
from hpcfl.runs.history import Outcome, outcome_of, record_outcome
from hpcfl.runs.job_file.resume_rules import differences, mutable_settings
from hpcfl.runs.job_file.settings import flatten, value_of, written
from hpcfl.runs.log import LogReader
from hpcfl.start.code_digests import code_digests, edited
from hpcfl.start.components.choose_executor import equal_size
from hpcfl.start.components.scores import own_models
from hpcfl.start.environment import (
    KEYS_OF_BITS,
    KEYS_OF_FAST_BITS,
    change_warnings,
    packages,
    triton_version,
    versions,
)
from hpcfl.start.progress import Progress
from hpcfl.start.session import RankSession
from hpcfl.user_code.names import digest_of


def record_start(session: RankSession, done: int, progress: Progress) -> None:
    """Write this start into the history, and print the changes since the last start; on rank 0.

    Args:
        session: of this start.
        done: rounds completed.
        progress: prints lines for the user.

    Raises:
        StoreError: the history is damaged, or cannot be written.
    """
    components, folder, ranks = session.components, session.folder, session.ranks
    job, population = components.loaded, components.population
    before = folder.last_start
    settings = mutable_settings(flatten(job.tree))
    facts = {"ranks": session.comm.size, "summed_by": session.comm.library}
    facts |= versions(ranks.device)
    if job.job.executor == "triton":
        facts["triton"] = triton_version()
    code = code_digests(job.job, components.model.module)
    models = own_models(components)
    fast = job.job.reduction == "fast"
    keys = (*KEYS_OF_BITS, *KEYS_OF_FAST_BITS) if fast else KEYS_OF_BITS
    for line in _branch_notes(session):
        progress.note(line)
    if folder.history_note:
        progress.note(folder.history_note)
    if done and not before:
        progress.note(
            f"{folder.history}: holds no earlier start; expected one, as {done} rounds are done. "
            "What changed since, of the settings, versions or your own code, is not known"
        )
    for warning in change_warnings(before, facts, keys):
        progress.note(warning)
    for line in _edited(before.get("code", {}), code, done):
        progress.note(line)
    known = before.get("settings", {})
    changes = [
        {"key": key, "before": value_of(known, key), "after": value}
        for key, value in differences(known, settings).items()
    ]
    for change in changes:
        was, now = written(change["before"]), written(change["after"])
        progress.note(f"{change['key']} was {was}, is {now} after round {done}")
    folder.add_to_history(
        {
            "session": session.session_id,
            "round": done,
            **facts,
            "packages": packages(),
            "inputs": dict(session.inputs),
            "split": split_digest(population.split),
            "code": code,
            "init": _digest_of_init(job.job),
            "map": [info.record for info in ranks.infos],
            "notes": list(ranks.notes),
            "guess_loss": population.dataset.guess_loss,
            "clients": len(population.rows),
            "classes": population.dataset.classes,
            "own_models": None if models is None else models._asdict(),
            "settings": settings,
            "changes": changes,
            **(session.request.entry if session.request else {}),
        }
    )


def _digest_of_init(job: Job) -> str | None:
    """The digest of the file of ``model.init``; None without one, or where it is gone by now."""
    path = job.model.init_file
    return digest_of(regular.read(path)) if path is not None and path.is_file() else None


def _edited(before: Mapping[str, str], now: Mapping[str, str], done: int) -> Iterator[str]:
    """A line for each module of the user's that is another one than at the last start."""
    for module in edited(before, now):
        file = sys.modules[module].__file__
        yield (
            f"module {module} ({file}) was edited since the last start; rounds after {done} "
            "follow the new code"
        )


def _branch_notes(session: RankSession) -> Iterator[str]:
    """A line for each branch that led to the run; and for defaults that are of other cohorts."""
    yield from map(str, session.branches)
    changed = {change["key"] for branch in session.branches for change in branch.changes}
    if not any(key.startswith("cohort.") for key in changed):
        return
    components = session.components
    size, default = components.job.block_size, equal_size(components)
    if size not in (None, default) and "block_size" not in changed:
        yield (
            f"block_size is {size} as before; the default for these cohorts: {written(default)} "
            "(block_size=null takes it)"
        )
    algorithm = components.job.algorithm
    derived: dict[str, Any] = {
        field.name: None
        for field in fields(algorithm)
        if field.default is None and getattr(algorithm, field.name) is not None
    }
    facts = algorithm.facts
    fresh = replace(algorithm, **derived).resolve(facts)
    for key in derived:
        value, default = getattr(algorithm, key), getattr(fresh, key)
        if default not in (None, value):
            yield (
                f"algorithm.{key} is {written(value)} as before; the default for these cohorts: "
                f"{written(default)}"
            )


@contextmanager
def record_outcomes(session: RankSession, done: int) -> Iterator[None]:
    """Write the outcome of the block into the history, on rank 0; `hpcfl status` shows it.

    Args:
        session: of this start.
        done: rounds completed before the block.
    """
    outcome = Outcome("finished", session.components.job.rounds, "")
    try:
        yield
        if session.ended:
            outcome = Outcome("finished early", *session.ended)
    except BaseException as e:
        outcome = outcome_of(e, max(done, session.comm.progress.round))
        raise
    finally:
        if session.comm.rank == 0:
            _record_outcome(session, outcome)


def _record_outcome(session: RankSession, outcome: Outcome) -> None:
    """Write the outcome into the history.

    A failure is printed and not raised: it would replace the error that ended the run.
    """
    try:
        recorded = record_outcome(session.folder, session.session_id, outcome)
    except (StoreError, DiskError) as e:
        sys.stderr.write(f"the history does not say how this start ended: {e}\n")
        return
    # A start that failed early may have failed before its entry was written.
    if not recorded and outcome.ending != "failed":
        text = (
            f"{session.folder.history}: has no entry of this start any more: the file was deleted "
            "or replaced while the run was alive"
        )
        sys.stderr.write(f"{one_line(text)}\n")


def warn_of_divergence(session: RankSession, progress: Progress) -> None:
    """Print a warning if the run diverged though all its numbers are finite; on rank 0."""
    root = session.folder.root
    try:
        log = LogReader(session.folder.log).read()
    except (StoreError, DiskError) as e:  # all rounds are done and saved: the run did not fail
        progress.note(f"warning: whether the run diverged is not known: {e}")
        return
    found = find_divergence(log, session.components.population.dataset.guess_loss)
    if found is not None:
        progress.note(
            f"warning: {root}: diverged: {found}. Lower local.lr or algorithm.server_lr, or set "
            "local.clip"
        )
