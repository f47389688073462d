"""List the algorithms, data, models and tasks of a job, from the classes' JSON schemas."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import partial
from shutil import get_terminal_size
from typing import Any, get_args

import torch
from pydantic import TypeAdapter
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

_ABSENT = object()  # the default of a field that is required
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
    table = _titled("algorithm.name", "down", "up", "kept", "server", "what, paper, settings")
    table.add_row("(every one)", "", "", "", "", "\n".join(_settings(Algorithm)))
    for name, cls in known.items():
        counted = [f"(counted as {cls.traffic_note})"] if cls.traffic_note else []
        about = (_summary(cls), _reference(cls), *counted, *_settings(cls, Algorithm))
        table.add_row(name, *multiples(cls()), "\n".join(about))
    table.caption = (
        "in vectors of the model's size; down, up: what a client receives and sends in a round; "
        "kept: what it keeps between rounds; server: what every rank keeps"
    )
    return table


def _tasks(known: Mapping[str, Any]) -> Table:
    table = _titled("task", "what")
    for name, sections in known.items():
        table.add_row(name, f"data {sections['data']['kind']}, model {sections['model']['name']}")
    return table


def multiples(algorithm: Algorithm) -> tuple[str, str, str, str]:
    """The sizes of message, upload, client state and server, in vectors of the model: "1", ..."""
    schema = dry_round(algorithm, SIZE, torch.float32)
    sent, unit = traffic(algorithm, schema), nbytes(schema.message.x)
    sizes = (sent.down, sent.up, nbytes(schema.state), nbytes(schema.server))
    down, up, kept, server = (f"{size / unit:.3g}" for size in sizes)
    return down, up, kept, server


def _titled(*columns: str) -> Table:
    table = Table(box=ASCII2, caption_justify="left", show_lines=True)
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1])
    return table


def _sections(key: str, known: Mapping[str, type[Any]], base: type[Any] | None = None) -> Table:
    table = _titled(key, "what, settings")
    if base:
        table.add_row("(every one)", "\n".join(_settings(base)))
    for name, cls in known.items():
        table.add_row(name, "\n".join((_summary(cls), *_settings(cls, base))))
    return table


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


def _settings(cls: type[Any], base: type[Any] | None = None) -> Iterable[str]:
    """A line for every field that ``base`` lacks: its name, default, type and description.

    A field of ``base`` whose default is another here has a line, too.
    """
    common = _properties(base) if base else {}
    for name, field in _properties(cls).items():
        same = name in common and common[name].get("default", _ABSENT) == field.get(
            "default", _ABSENT
        )
        if name != "kind" and not same:
            note = f": {field['description']}" if "description" in field else ""
            yield f"- {name}{_default(field)} ({_type(field)}){note}"


_schemas: dict[type[Any], dict[str, dict[str, Any]]] = {}


def _properties(cls: type[Any]) -> dict[str, dict[str, Any]]:
    """The JSON schema of every field of a section, described by the docstring below it."""
    if cls in _schemas:  # many classes have the same parents, and a schema takes milliseconds
        return _schemas[cls]
    properties: dict[str, dict[str, Any]] = TypeAdapter(cls).json_schema()["properties"]
    for field in properties.values():
        if "description" in field:
            first = field["description"].partition("\n\n")[0]
            field["description"] = " ".join(first.replace("``", "").split())
    # Pydantic reads only the docstrings of the class itself, not those of inherited fields.
    for parent in filter(is_dataclass, cls.__mro__[1:]):
        for name, field in _properties(parent).items():
            if "description" in field:
                properties[name].setdefault("description", field["description"])
    return _schemas.setdefault(cls, properties)


def _default(field: Mapping[str, Any]) -> str:
    if "default" not in field:
        return ", required"
    return "" if field["default"] is None else f" = {written(field['default'])}"


def written(value: Any) -> str:
    """A setting as a job writes it: true, [0.6, 0.3]."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _type(field: Mapping[str, Any]) -> str:
    """A JSON schema as a user reads it: "number > 0", "zero | shared | random"."""
    if "anyOf" in field:
        kinds = (_type(kind) for kind in field["anyOf"] if kind.get("type") != "null")
        return " | ".join(dict.fromkeys(kinds))
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if "type" not in field:  # a reference to another section, or to one of several
        return "section"
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    bounds = (
        f"{sign} {'2^63' if field[key] == 2**63 else field[key]}"
        for key, sign in _BOUNDS.items()
        if key in field
    )
    return f"{_WORDS[field['type']]} {', '.join(bounds)}".rstrip()


_BOUNDS = {
    "exclusiveMinimum": ">",
    "minimum": ">=",
    "exclusiveMaximum": "<",
    "maximum": "<=",
}
_WORDS = {
    "boolean": "true | false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}
