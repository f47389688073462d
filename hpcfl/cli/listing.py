"""List what a job can name, from the classes themselves."""

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from itertools import pairwise
from shutil import get_terminal_size
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from annotated_types import Ge, Gt, Interval, Le, Lt
from rich.box import ASCII2
from rich.table import Table

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.base import Algorithm
from hpcfl.cohort.sampling import CohortConfig
from hpcfl.data import SOURCES
from hpcfl.data.base import DataConfig
from hpcfl.data.partition import Partition
from hpcfl.engine.schema import dry_round, nbytes, traffic
from hpcfl.errors import JobError
from hpcfl.io.table import render_tables
from hpcfl.job.registry import suggestion
from hpcfl.job.tasks import TASKS
from hpcfl.models import MODELS
from hpcfl.models.base import ModelConfig
from hpcfl.types import Section

_OWN = object()  # no default of a field that a base has
NARROWEST, WIDEST = 80, 100  # columns of a table
SIZE = 1_000_000  # parameters in the dry round: scalars that are sent along round to nothing


def listing(what: str | None = None) -> str:
    """Every algorithm, data set, partition, cohort, model and task, with its settings.

    Args:
        what: one of these alone: a kind of thing ("algorithms", ...) or a name ("fedmim").

    Raises:
        JobError: nothing is called so.
    """
    what = what.lower() if what else None
    kinds: dict[str, tuple[Callable[[Mapping[str, Any]], Table], Mapping[str, Any]]] = {
        "algorithms": (_algorithms, ALGORITHMS),
        "data": (partial(_sections, "data.kind", base=DataConfig), SOURCES),
        "partitions": (partial(_sections, "data.partition.kind"), _kinds(Partition)),
        "cohorts": (partial(_sections, "cohort.kind"), _kinds(CohortConfig)),
        "models": (partial(_sections, "model.name", base=ModelConfig), MODELS),
        "tasks": (_tasks, TASKS),
    }
    tables: list[Table] = []
    for kind, (table, known) in kinds.items():
        chosen = known if what in (None, kind) else {n: c for n, c in known.items() if n == what}
        if chosen:
            tables.append(table(chosen))
    if not tables:
        names = [*kinds, *(name for _, known in kinds.values() for name in known)]
        raise JobError(
            f"list: found {what}, expected one of {', '.join(kinds)}, or a name listed there"
            f"{suggestion(str(what), names)}"
        )
    return render_tables(*tables, width=min(max(get_terminal_size().columns, NARROWEST), WIDEST))


def _algorithms(known: Mapping[str, type[Algorithm]]) -> Table:
    made = _titled("algorithm.name", "down", "up", "kept", "server", "what, paper, settings")
    made.add_row("(every one)", "", "", "", "", "\n".join(_settings(Algorithm)))
    for name, cls in known.items():
        counted = [f"(counted as {cls.traffic_note})"] if cls.traffic_note else []
        about = (_summary(cls), _reference(cls), *counted, *_settings(cls, Algorithm))
        made.add_row(name, *multiples(cls()), "\n".join(about))
    made.caption = (
        "in vectors of the model's size; down, up: what a client receives and sends in a round; "
        "kept: what it keeps between rounds; server: what every rank keeps"
    )
    return made


def _tasks(known: Mapping[str, Any]) -> Table:
    made = _titled("task", "what")
    for name, sections in known.items():
        made.add_row(name, f"data {sections['data']['kind']}, model {sections['model']['name']}")
    return made


def multiples(algorithm: Algorithm) -> tuple[str, str, str, str]:
    """What a client receives, sends and keeps, and a server keeps, in vectors: "1", "2", ...."""
    schema = dry_round(algorithm, SIZE, torch.float32)
    sent, unit = traffic(algorithm, schema), nbytes(schema.message.x)
    sizes = (sent.down, sent.up, nbytes(schema.state), nbytes(schema.server))
    down, up, kept, server = (f"{size / unit:.3g}" for size in sizes)
    return down, up, kept, server


def _titled(*columns: str) -> Table:
    made = Table(box=ASCII2, caption_justify="left", show_lines=True)
    for column in columns:
        made.add_column(column, no_wrap=column != columns[-1])
    return made


def _sections(key: str, known: Mapping[str, type[Any]], base: type[Any] = Section) -> Table:
    made = _titled(key, "what, settings")
    if is_dataclass(base):
        made.add_row("(every one)", "\n".join(_settings(base)))
    for name, cls in known.items():
        made.add_row(name, "\n".join((_summary(cls), *_settings(cls, base))))
    return made


def _kinds(union: Any) -> dict[str, type[Any]]:
    """The members of a union of sections, by their ``kind``."""
    return {cls.kind: cls for cls in get_args(get_args(union)[0])}


def _summary(cls: type[Any]) -> str:
    return (
        inspect.cleandoc(cls.__doc__ or "")
        .partition("\n\n")[0]
        .replace("\n", " ")
        .replace("``", "")
    )


def _reference(cls: type[Any]) -> str:
    """The paper: the last paragraph of the module's docstring before the departures from it."""
    paragraphs = inspect.cleandoc(inspect.getmodule(cls).__doc__ or "").split("\n\n")
    departures = next((k for k, p in enumerate(paragraphs) if p.startswith("Departures")), None)
    return " ".join(paragraphs[:departures][-1].split())


def _settings(cls: type[Any], base: type[Any] = Section) -> Iterable[str]:
    """A line for every field that ``base`` lacks: its name, default and range, what it is for.

    And for those of ``base`` whose default is another here.
    """
    common = {f.name: f.default for f in fields(base)} if is_dataclass(base) else {}
    hints = get_type_hints(cls, include_extras=True)
    notes = _notes(cls)
    for field in fields(cls):
        if field.name != "kind" and common.get(field.name, _OWN) != field.default:
            note = f": {notes[field.name]}" if field.name in notes else ""
            yield f"- {field.name}{_default(field)} ({_type(hints[field.name])}){note}"


def _notes(cls: type[Any]) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and of its bases, first paragraphs."""
    notes = {}
    for base in reversed([base for base in cls.__mro__ if is_dataclass(base)]):
        (tree,) = ast.parse(dedent(inspect.getsource(base))).body
        for field, below in pairwise(tree.body):  # type: ignore[attr-defined]
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    first = inspect.cleandoc(text).partition("\n\n")[0]
                    notes[name] = " ".join(first.replace("``", "").split())
    return notes


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return ", required"
    if field.default is None:
        return ""
    return f" = {written(field.default)}"


def written(value: Any) -> str:
    """A setting as a job writes it: true, [0.6, 0.3]."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _type(hint: Any) -> str:
    """A type as a user reads it: "float, > 0", "zero | shared | random"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner = _type(arguments[0])
        return " ".join((inner, *filter(None, map(_range, arguments[1:]))))
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(_type(a) for a in arguments if a is not NoneType))
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    return "section" if is_dataclass(hint) else _WORDS[hint]


def _range(metadata: Any) -> str:
    match metadata:
        case Gt(gt=bound):
            return f"> {bound}"
        case Ge(ge=bound):
            return f">= {bound}"
        case Lt(lt=bound):
            return "< 2^63" if bound == 2**63 else f"< {bound}"
        case Le(le=bound):
            return f"<= {bound}"
        case Interval():
            return ", ".join(map(_range, metadata))
        case _:
            return ""


_WORDS = {bool: "true | false", int: "whole number", float: "number", str: "text"}
