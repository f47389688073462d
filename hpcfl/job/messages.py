"""Turn pydantic's validation errors into one line for the user."""

import math
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any, get_args, get_type_hints

from pydantic_core import ErrorDetails

from hpcfl.job.registry import REGISTRIES
from hpcfl.models.module import Module
from hpcfl.runs.job_file.words import SECTION, shown, suggestion
from hpcfl.runs.job_file.yaml_file import JobFile, Key, Tree
from hpcfl.user_code.names import short_name

_MANY = 3  # names in a hint
_WORDS = {  # plainer than pydantic's own
    "bool_type": "true or false",
    "dataclass_type": SECTION,
    "dict_type": SECTION,
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "string_type": "text",
    "tuple_type": "a list",
}


def validation_message(
    faults: list[ErrorDetails], cls: type[Any], raw: Tree, file: JobFile, at: Key
) -> str:
    """Describe one error of a section in one line: where, found, expected, what to do.

    That is an unknown key if there is one, else pydantic's first error.

    Args:
        faults: pydantic's errors.
        cls: the section's class, or a union of classes.
        raw: the section's values, from the file.
        file: the job file, which knows the lines of keys.
        at: the section's key.
    """
    fault = min(faults, key=lambda fault: fault["type"] != "unexpected_keyword_argument")
    path = _path(fault, raw)
    if fault["type"].startswith("union_tag"):
        path = (*path, "kind")
    key, found = (*at, *path), fault["input"]
    where = f"{file.where(key)}: {'.'.join(map(str, key))}"
    match fault["type"]:
        case "unexpected_keyword_argument":
            return f"{where}: {_unknown(str(path[-1]), cls, path[:-1], raw, file, at)}"
        case "missing":
            return f"{where}: missing; it has no default, so it must be given"
        case "union_tag_not_found" | "union_tag_invalid":
            kinds = [option.kind for option in _options(cls, path[:-1], raw)]
            tag = fault.get("ctx", {}).get("tag")
            state = "missing" if tag is None else f"found {shown(tag)}"
            return (
                f"{where}: {state}, expected one of {', '.join(kinds)}{suggestion(str(tag), kinds)}"
            )
        case "value_error":
            return f"{where}: {fault['msg'].removeprefix('Value error, ')}"
        case _:
            expected = " or ".join(
                _expected(other) for other in faults if _path(other, raw) == path
            )
            return f"{where}: found {shown(found)}, expected {expected}{_yaml_hint(found)}"


def _path(fault: ErrorDetails, raw: Any) -> Key:
    """Pydantic's location without the tags of unions, which are no keys of the file."""
    path: list[int | str] = []
    for depth, part in enumerate(fault["loc"], 1):
        if part in raw if isinstance(raw, dict) else isinstance(part, int):
            raw = raw[part]
        elif depth < len(fault["loc"]) or fault["type"] != "missing":
            continue
        path.append(part)
    return tuple(path)


def _expected(fault: ErrorDetails) -> str:
    expected = fault["msg"].removeprefix("Input should be ")
    if expected.startswith(("greater", "less")):
        return f"a number {expected}"
    if fault["type"] == "too_short":
        return f"a list of {fault['ctx']['min_length']} or more"
    return _WORDS.get(fault["type"], expected)


def _unknown(name: str, cls: type[Any], path: Key, raw: Any, file: JobFile, at: Key) -> str:
    """Describe an unknown key of the section at ``path`` below ``cls``, with a suggestion."""
    kind = REGISTRIES.get(str(at[0])) if at and not path else None
    if kind and not issubclass(cls, kind.base):  # of a file that is no job
        kind = None
    below = reduce(lambda tree, part: tree[part], path, raw)
    chosen = file.tree[kind.section][kind.key] if kind else below.get("kind")
    owner = chosen or ".".join(map(str, (*at, *path))) or "a job"
    options = _options(cls, path, raw)
    section = next((o for o in options if getattr(o, "kind", None) == chosen), options[0])
    known = sorted(_names(section) | (set() if at or path else set(REGISTRIES)))
    others = [other for other, c in kind.known.items() if name in _names(c)] if kind else []
    if len(others) > _MANY:
        hint = f"; {len(others)} others have it, such as {', '.join(others[:_MANY])}: hpcfl list"
    else:
        hint = f"; did you mean {' or '.join(others)}?" if others else suggestion(name, known)
    if not at and not path and (places := _elsewhere(name, cls, file)):
        hint = f"; did you mean {' or '.join(places)}?"
    if section is Module:
        maker = short_name(below.get("of") or "its class")
        hint = suggestion(name, known) or f"; arguments of {maker} go into model.arguments"
    own = section.__module__.partition(".")[0] != __name__.partition(".")[0]
    if own and hasattr(section, name):
        hint = f"; write {name} with a type in the class, {name}: float = ..., to make it a key"
    return f'{owner} has no "{name}" (it has {", ".join(known)}){hint}'


def _elsewhere(name: str, cls: type[Any], file: JobFile) -> list[str]:
    """Where a key at the top of a job may belong: "local.lr" of lr, at most _MANY places.

    Also where its value is the name of an algorithm, a model or a data set.
    """
    value = file.tree[name]
    named = [
        f"{kind.section}.{kind.key}"
        for kind in REGISTRIES.values()
        if isinstance(value, str) and value in kind.known
    ]
    sections = {
        kind.section: [kind.find(file, file.tree[kind.section][kind.key])]
        for kind in REGISTRIES.values()
    }
    sections |= {
        key: _options(cls, (key,), {**file.tree, key: file.tree.get(key)}) for key in _names(cls)
    }
    found = [
        f"{key}.{name}"
        for key, options in sections.items()
        if any(name in _names(option) for option in _chosen(options, file.tree.get(key)))
    ]
    return (named or sorted(found))[:_MANY]


def _chosen(options: list[type[Any]], raw: Any) -> list[type[Any]]:
    """The class that the section's kind names; all classes that it may be, where it has none."""
    kind = raw.get("kind") if isinstance(raw, dict) else None
    return [o for o in options if getattr(o, "kind", None) == kind] or options


def _options(cls: type[Any], path: Key, raw: Any) -> list[type[Any]]:
    """The dataclasses that the section at ``path`` below ``cls`` may be."""
    options = [cls]
    for part in path:
        tag = raw.get("kind")
        cls = next((o for o in options if getattr(o, "kind", None) == tag), options[0])
        hint = get_type_hints(cls)[str(part)]
        options = [c for c in (hint, *get_args(hint)) if isinstance(c, type) and is_dataclass(c)]
        raw = raw[part]
    return options


def _names(section: type[Any]) -> set[str]:
    return {f.name for f in fields(section)}


def _yaml_hint(found: Any) -> str:
    """A hint about values that YAML reads differently from what people expect."""
    if isinstance(found, bool):
        return "; YAML reads on, off, yes and no as true and false: use quotes for text"
    if not isinstance(found, str):
        return ""
    try:
        number = float(found)
    except ValueError:
        return ""
    return "; without quotes it is a number" if math.isfinite(number) else ""
