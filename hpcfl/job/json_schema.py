"""Make the JSON schema of a job, by which an editor completes its keys and marks mistakes."""

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from pydantic import TypeAdapter

from hpcfl.algorithms.optim import OPTIMIZERS
from hpcfl.clients.step_schedule import STEP_SCHEDULES
from hpcfl.job.description import DescribedSchema
from hpcfl.job.registry import REGISTRIES, Registry
from hpcfl.job.schema import Job
from hpcfl.job.tasks import TASKS
from hpcfl.models.training_loss import TRAINING_LOSSES
from hpcfl.user_code.named_section import OWN

DRAFT = "http://json-schema.org/draft-07/schema#"  # the one that most editors know
Schema = dict[str, Any]


def job_schema() -> Schema:
    """The JSON schema of a job: keys, types, ranges, defaults and meanings, from its classes.

    It accepts some jobs that `hpcfl check` refuses: it does not know which keys exclude each other,
    which of them a task sets, and which keys a class has that is not hpcfl's own.  It refuses keys
    by the names of earlier versions, which hpcfl still reads.
    """
    classes: dict[tuple[str, str], type[Any]] = {("", "job"): Job}
    for kind in REGISTRIES.values():
        classes |= {(kind.section, name): cls for name, cls in kind.known.items()}
    references, shared = TypeAdapter.json_schemas(
        [(key, "validation", TypeAdapter(cls)) for key, cls in classes.items()],
        schema_generator=DescribedSchema,
    )
    sections: dict[str, Schema] = shared["$defs"]
    for section in sections.values():
        _require_kind(section)
    found = {key: sections[_name(reference)] for (key, _), reference in references.items()}
    job = found.pop(("", "job"))
    for name in {_name(reference) for reference in references.values()}:
        del sections[name]  # written below, with the key that names it
    for kind in REGISTRIES.values():
        own = {name: found[kind.section, name] for name in kind.known}
        description = job["properties"][kind.section]["description"]
        del sections[_name(job["properties"][kind.section])]  # of the base class
        choices = _choices(kind, own, sections)
        job["properties"][kind.section] = {"description": description, "anyOf": choices}
    # A name stands for its section.
    local = sections["Local"]["properties"]
    for key, kinds in (
        (local["optimizer"], OPTIMIZERS),
        (local["step_schedule"]["anyOf"][0], STEP_SCHEDULES),
        (job["properties"]["loss"], TRAINING_LOSSES),
    ):
        names = [kind for kind in kinds if kind != OWN]
        key["oneOf"] += [{"enum": names}, {"type": "string", "pattern": r"\."}]
    job["properties"]["task"]["anyOf"] = [{"enum": sorted(TASKS)}, {"type": "null"}]
    job["required"] = [key for key in job["required"] if key not in ("data", "model")]
    job["anyOf"] = [{"required": ["task"]}, {"required": ["data", "model"]}]
    return {"$schema": DRAFT, "title": "A job of hpcfl", **job, "$defs": sections}


def _name(reference: Mapping[str, Any]) -> str:
    """The name of the section that a schema refers to."""
    return str(reference["$ref"]).rpartition("/")[2]


def _require_kind(section: Schema) -> None:
    """Require the key that tells a section from the others at its place; it has one value."""
    kind = section["properties"].get("kind", {})
    if "const" in kind:
        kind.pop("default", None)
        section["required"] = ["kind", *section.get("required", [])]


def _choices(
    kind: Registry, own: Mapping[str, Schema], sections: dict[str, Schema]
) -> list[Schema]:
    """The schemas of a section that names its class; long ones are added to ``sections``."""
    references = []
    for name, schema in own.items():
        given = {key for task in TASKS.values() for key in _given(task, kind, name)}
        needed = [key for key in schema.get("required", []) if key not in given]
        full = {kind.key: {"const": name}, **schema["properties"]}
        title = f"{kind.section}.{name}"
        sections[title] = {**schema, "properties": full, "required": [kind.key, *needed]}
        references.append({"$ref": f"#/$defs/{title}"})
        if any(_given(task, kind, name) for task in TASKS.values()):  # the task names it
            sections[f"{title}.of_task"] = {**schema, "required": needed}
            references.append({"$ref": f"#/$defs/{title}.of_task"})
    plugins = [
        f"|^{re.escape(name)}$" for name in entry_points(group=f"hpcfl.{kind.section}").names
    ]
    other = {
        "type": "object",
        "description": "A class of one's own, by its dotted path: its keys are not checked here.",
        "properties": {kind.key: {"type": "string", "pattern": r"\." + "".join(sorted(plugins))}},
        "required": [kind.key],
    }
    return [*references, other]


def _given(task: Mapping[str, Mapping[str, Any]], kind: Registry, name: str) -> set[str]:
    """The keys that a task gives a section, if it names this class there."""
    defaults = task.get(kind.section, {})
    return set(defaults) if defaults.get(kind.key) == name else set()
