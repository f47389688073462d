"""List the keys of a job, what it can name (algorithms, data, models, ...) and packaged jobs."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.optim import OPTIMIZERS
from hpcfl.clients.sampling import CohortConfig
from hpcfl.clients.step_schedule import STEP_SCHEDULES
from hpcfl.data import SOURCES
from hpcfl.data.base import DataConfig
from hpcfl.data.partition import Partition
from hpcfl.engine.dry_round import RoundSchema, dry_round, nbytes, traffic
from hpcfl.errors import JobError, as_job_error
from hpcfl.io.table import render_tables
from hpcfl.job.description import REQUIRED, kinds, settings, summary
from hpcfl.job.load import limits
from hpcfl.job.registry import find_own
from hpcfl.job.schema import SECTIONS, Job
from hpcfl.job.tasks import TASKS
from hpcfl.models import MODELS
from hpcfl.models.base import ModelConfig
from hpcfl.models.training_loss import TRAINING_LOSSES
from hpcfl.runs.job_file.packaged import FOLDER, packaged_jobs
from hpcfl.runs.job_file.packaged import summary as summary_of_job
from hpcfl.runs.job_file.words import suggestion
from hpcfl.tools.list_algorithms import algorithms_table, reference, table_width, titled

# Sections of a job whose keys follow from one choice: listed as the choices that there are.
CHOICES = {
    "algorithm": "algorithms",
    "cohort": "cohorts",
    "loss": "losses",
    "model": "models",
    "optimizer": "optimizers",
    "step_schedule": "step_schedules",
    "task": "tasks",
}
_LISTED = {"algorithm": "algorithms", "data": "data", "model": "models"}  # by section
# Parameters in the dry rounds: scalars that are sent along round to nothing.
SIZES = (10_000, 20_000)


def listing(what: str | None = None) -> str:
    """The job's sections, all that they can name, with keys, and the packaged jobs.

    Args:
        what: one of these alone: a kind of thing ("algorithms", ...), a section of a job ("local"),
            a name ("fedmim"), or the dotted path of a class of the user's ("mine.FedMine").

    Raises:
        JobError: nothing is called so, or the class cannot be imported.
    """
    given = what
    what = what.lower() if what else None
    what = CHOICES.get(str(what), what)
    width = table_width()
    tables_of: dict[str, tuple[Callable[[Mapping[str, Any]], Table], Mapping[str, Any]]] = {
        "job": (partial(_sections, "section of a job"), {"(top level)": Job, **SECTIONS}),
        "algorithms": (_algorithms, ALGORITHMS),
        "data": (partial(_sections, "data.kind", base=DataConfig), SOURCES),
        "partitions": (partial(_sections, "data.partition.kind"), kinds(Partition)),
        "cohorts": (partial(_sections, "cohort.kind"), kinds(CohortConfig)),
        "models": (partial(_sections, "model.name", base=ModelConfig), MODELS),
        "optimizers": (partial(_sections, "local.optimizer.kind"), OPTIMIZERS),
        "step_schedules": (partial(_sections, "local.step_schedule.kind"), STEP_SCHEDULES),
        "losses": (partial(_sections, "loss.kind"), TRAINING_LOSSES),
        "tasks": (_tasks, TASKS),
        "jobs": (partial(_jobs, width), packaged_jobs()),
    }
    tables: list[Table] = []
    for kind, (table, known) in tables_of.items():
        chosen = known if what in (None, kind) else {n: known[n] for n in known if n == what}
        if chosen:
            tables.append(table(chosen))
    first, dot, _ = str(what).partition(".")
    head = CHOICES.get(first, first)
    if not tables and dot and any(head in (kind, *known) for kind, (_, known) in tables_of.items()):
        return listing(head)  # of a key, "local.lr"
    if not tables and (own := find_own("list", str(given))):
        section, cls = own
        table, _ = tables_of[_LISTED[section]]
        tables.append(table({str(given): cls}))
    if not tables:
        names = [*tables_of, *(name for _, known in tables_of.values() for name in known)]
        raise JobError(
            f"list: found {given}, expected one of {', '.join(tables_of)}, schema, a name listed "
            "there, or a dotted path to a class of your own"
            f"{suggestion(str(what), names)}"
        )
    return render_tables(*tables, width=width)


def _algorithms(known: Mapping[str, type[Algorithm]]) -> Table:
    """What each algorithm is; of one alone its sizes and settings, too."""
    if len(known) > 1:
        return algorithms_table()
    table = titled("algorithm.name", "down", "up", "kept", "server", "what, paper, settings")
    of_all = "\n".join(_settings(Algorithm, "algorithm"))
    table.add_row("(every one)", "", "", "", "", of_all)
    [(name, cls)] = known.items()
    sizes, more = _sizes(name, cls)
    about = (
        _summary(cls),
        reference(inspect.getmodule(cls).__doc__ or ""),
        *more,
        *_settings(cls, "algorithm", Algorithm),
    )
    table.add_row(name, *sizes, "\n".join(about))
    table.caption = (
        "in vectors of the model's size; down, up: what a client receives and sends in a round; "
        "kept: what it keeps between rounds; server: what every rank keeps; -: follows from the "
        "model's layers"
    )
    return table


def _sizes(name: str, cls: type[Algorithm]) -> tuple[Sequence[str], Sequence[str]]:
    """The ``multiples`` of an algorithm with its default settings, and a note where it has none."""
    if any(key.default == REQUIRED for key in settings(cls)):
        return ("",) * 4, ["(sizes: hpcfl check of a job that has its settings)"]
    with as_job_error(f"list: {name}", "with its default settings its dry round failed", "", cls):
        return multiples(cls()), []


def _tasks(known: Mapping[str, Any]) -> Table:
    table = titled("task", "what")
    for name, sections in known.items():
        table.add_row(name, f"data {sections['data']['kind']}, model {sections['model']['name']}")
    return table


def _jobs(width: int, known: Mapping[str, Path]) -> Table:
    """A line for each job, cut to the table's width; all of its text where there is but one."""
    table = titled("packaged job", "what")
    table.show_lines = False
    room = width - max(map(len, known)) - 7  # borders and margins
    for name, file in known.items():
        text = summary_of_job(file)
        cut = len(known) > 1 and len(text) > room
        table.add_row(name, f"{text[: room - 3].rstrip()}..." if cut else text)
    table.caption = (
        "hpcfl run NAME, or hpcfl sweep NAME of a sweep; hpcfl list NAME says more; "
        f"the files: {FOLDER}"
    )
    return table


def multiples(algorithm: Algorithm) -> tuple[str, str, str, str]:
    """The sizes of message, upload, client state and server, in vectors of the model: "1", ...

    "-" for what does not grow as the model does, so that only the model itself tells its size.
    """
    small, large = (
        multiples_of(algorithm, dry_round(algorithm, size, torch.float32)) for size in SIZES
    )
    down, up, kept, server = (
        one if one == other else "-" for one, other in zip(small, large, strict=True)
    )
    return down, up, kept, server


def multiples_of(algorithm: Algorithm, schema: RoundSchema) -> tuple[str, str, str, str]:
    """The same of one model, by its dry round."""
    sent, unit = traffic(algorithm, schema), nbytes(schema.message.x)
    sizes = (sent.down, sent.up, nbytes(schema.state), nbytes(schema.server))
    down, up, kept, server = (f"{size / unit:.3g}" for size in sizes)
    return down, up, kept, server


def _sections(key: str, known: Mapping[str, type[Any]], base: type[Any] | None = None) -> Table:
    table = titled(key, "what, settings")
    section = key.rpartition(".")[0]  # of a choice by name or kind; else each name is a section's
    if base:
        table.add_row("(every one)", "\n".join(_settings(base, section)))
    for name, cls in known.items():
        keys = _settings(cls, section or name, base)
        table.add_row(name, "\n".join((_summary(cls), *keys)))
    return table


def _summary(cls: type[Any]) -> str:
    return summary(cls).replace("``", "")


def _settings(cls: type[Any], section: str, base: type[Any] | None = None) -> Iterable[str]:
    """A line for every key of a section that ``base`` lacks: name, default, values, meaning."""
    at = () if cls is Job else tuple(section.split("."))
    for key in settings(cls, base):
        given = "" if key.default is None else f" = {key.default}"
        default = ", required" if key.default == REQUIRED else given
        meaning = f": {key.meaning.replace('``', '')}" if key.meaning else ""
        values = ", ".join([key.values, *limits((*at, key.name))])
        yield f"- {key.name}{default} ({values}){meaning}"
