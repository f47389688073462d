"""Say what a start begins: to the user, the history and the callbacks."""

import json
from shlex import quote

from hpcfl.io.atomic import write_errors
from hpcfl.io.words import counted
from hpcfl.runs.log import LogReader
from hpcfl.start.components.scores import counts_own_models, own_models, possible_scores
from hpcfl.start.progress import Progress
from hpcfl.start.record_start import (
    record_start,
)
from hpcfl.start.session import RankSession, StartPoint
from hpcfl.user_code.names import short_name


def announce(
    session: RankSession, point: StartPoint, progress: Progress, *, finished: bool
) -> None:
    """Say what begins, to the user, the history and the callbacks."""
    root, components, done = session.folder.root, session.components, point.round
    line = f"{root}: finished, nothing to do" if finished else _described(session, done)
    if session.ended:
        line = f"{root}: {session.ended}; nothing to do unless stop or callbacks change"
        if components.loaded.job.stop is not None:
            line += f": `hpcfl resume {quote(str(root))} stop=null` makes the other rounds"
    progress.note(line)
    for line in (
        *components.loaded.notes,
        *session.ranks.notes,
        *components.population.dataset.notes,
    ):
        progress.note(line)
    if session.comm.rank == 0:
        with write_errors(session.folder.history):
            record_start(session, done, progress)
            if done and not finished:
                progress.kept(LogReader(session.folder.log).parse(point.log))
        session.start_callbacks(done)


def _described(session: RankSession, done: int) -> str:
    """One line about the job, for the beginning of a start."""
    components, job = session.components, session.components.job
    population = components.population
    algorithm = dict(components.loaded.tree["algorithm"])
    name = short_name(algorithm.pop("name"))
    settings = ", ".join(f"{key} {json.dumps(value)}" for key, value in algorithm.items())
    held_out = population.split.held_out is not None
    unscored = held_out and not job.evaluate.scores_clients
    parts = [
        f"{name} ({settings}): {counted(len(population.rows), 'client')}, "
        f"{components.model.text}, "
        f"{session.comm.size} rank(s) by {session.comm.backend} on {components.device.type}, "
        f"{job.precision}, into {session.folder.root}"
    ]
    if done:
        parts[0] += f", from round {done}"
    if not isinstance(job.loss, str):
        parts.append(f"losses are those of {json.dumps(components.loaded.tree['loss'])}")
    if components.model.missing_weights:
        parts.append(f"model.init left out {', '.join(components.model.missing_weights)}")
    if session.outputs.callbacks:
        parts.append(f"calls {', '.join(session.outputs.callbacks.names)}")
    if session.accountant is not None and (why := session.accountant.why_none):
        parts.append(f"epsilon is not in the log: {why}")
    if unscored:
        parts.append("held-out examples are not scored: evaluate.clients=true does")
    if job.evaluate.best and not any("validation" in key for key in possible_scores(components)):
        own = own_models(components) if counts_own_models(components) else None
        where = "the test set" if own is None else own.examples
        parts.append(f"evaluate.best chooses on {where}: data.validation keeps nothing")
    return "; ".join(parts)
