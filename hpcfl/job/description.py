"""Describe the keys of a job's sections, as `hpcfl list` and the reference pages show them.

Everything is read from the sections' classes: names, types and defaults from their JSON schemas,
meanings from the docstrings below their fields.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import to_jsonable_python
from pydantic_core.core_schema import DataclassSchema

from hpcfl.runs.job_file.settings import written

_ABSENT = object()  # the default of a field that is required
REQUIRED = "required"


class Setting(NamedTuple):
    """One key of a section."""

    name: str
    default: str | None
    """As a job writes it; "required"; None where the key may be absent."""
    values: str
    """The type and the range: "number > 0", "zero | shared | random"; "section" for a mapping."""
    meaning: str
    """A sentence with code between double backticks; empty where the class says nothing."""


def settings(cls: type[Any], base: type[Any] | None = None) -> list[Setting]:
    """The keys of a section's class that ``base`` lacks, or to which it gives another default.

    A ``kind`` with one value is the name of the class, and no key.
    """
    common = _properties(base) if base else {}
    return [
        Setting(name, _default(field), _values(field), field.get("description", ""))
        for name, field in _properties(cls).items()
        if not (name == "kind" and "const" in field) and not _same_default(field, common.get(name))
    ]


def summary(cls: type[Any]) -> str:
    """The first paragraph of the class's docstring, in one line."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def kinds(union: Any) -> dict[str, type[Any]]:
    """The members of a union of sections, by their ``kind``."""
    return {cls.kind: cls for cls in get_args(get_args(union)[0])}


_schemas: dict[type[Any], dict[str, dict[str, Any]]] = {}


def _properties(cls: type[Any]) -> dict[str, dict[str, Any]]:
    """The JSON schema of every field of a section, described by the docstring below it."""
    if cls in _schemas:  # many classes have the same parents, and a schema takes milliseconds
        return _schemas[cls]
    schema = TypeAdapter(cls).json_schema(schema_generator=DescribedSchema)
    properties: dict[str, dict[str, Any]] = schema["properties"]
    for name, field in properties.items():
        if name not in schema.get("required", ()):
            field.setdefault("default", None)  # a section: its own keys have defaults
    return _schemas.setdefault(cls, properties)


class DescribedSchema(GenerateJsonSchema):
    """JSON schemas of sections, with the docstrings of the classes and of their fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No: a title would be the key once more, in capitals."""
        return False

    def encode_default(self, dft: Any) -> Any:
        """A default as JSON; pydantic's own makes a validator for each."""
        return to_jsonable_python(dft)

    def dataclass_schema(self, schema: DataclassSchema) -> JsonSchemaValue:
        """The schema of a section."""
        made = super().dataclass_schema(schema)
        cls = schema["cls"]
        made["description"] = summary(cls).replace("``", "")
        for name, meaning in _meanings(cls).items():
            if name in made["properties"]:
                made["properties"][name]["description"] = meaning
        return made


def _meanings(cls: type[Any]) -> dict[str, str]:
    """The first paragraph of the docstring below each field, also of those that are inherited.

    Pydantic could read them (use_attribute_docstrings), but it parses a class's module anew for
    every class and every section that refers to it: 3 s of `hpcfl list`, and some of every run.
    """
    found: dict[str, str] = {}
    for parent in filter(is_dataclass, cls.__mro__):
        own = _field_docstrings(sys.modules[parent.__module__]).get(parent.__qualname__, {})
        found = own | found
    return found


@cache
def _field_docstrings(module: ModuleType) -> dict[str, dict[str, str]]:
    """The first paragraphs of each class at the top of the module, below its fields, on one line.

    Raises:
        OSError: the module has no source.
    """
    found: dict[str, dict[str, str]] = {}
    for cls in ast.parse(inspect.getsource(module)).body:
        if isinstance(cls, ast.ClassDef):
            found[cls.name] = meanings = {}
            for field, below in pairwise(cls.body):
                match field, below:
                    case (
                        ast.AnnAssign(target=ast.Name(name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        first = inspect.cleandoc(text).partition("\n\n")[0]
                        meanings[name] = " ".join(first.split())
    return found


def _same_default(field: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and other.get("default", _ABSENT) == field.get("default", _ABSENT)


def _default(field: Mapping[str, Any]) -> str | None:
    if "default" not in field:
        return REQUIRED
    return None if field["default"] is None else written(field["default"])


def _values(field: Mapping[str, Any]) -> str:
    """A JSON schema as a user reads it: "number > 0", "zero | shared | random"."""
    if "anyOf" in field:
        options = (_values(kind) for kind in field["anyOf"] if kind.get("type") != "null")
        return " | ".join(dict.fromkeys(options))
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if "type" not in field:  # a reference to another section, or to one of several
        return "section"
    if field["type"] == "array":
        return f"list of {_values(field['items'])}"
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
    "object": "section",
    "string": "text",
}
