"""Words of the messages about a job: a value, a section, the name that may be meant."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

from hpcfl.runs.job_file.yaml_file import plain

SECTION = "a section (a mapping of keys to values)"
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def suggestion(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The end of a message about an unknown name: the most similar known name, if there is one."""
    similar = get_close_matches(name, list(known), n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def shown(value: Any) -> str:
    """A value as messages show it: on one line, shortened if it is long."""
    return _SHORT.repr(plain(value))
