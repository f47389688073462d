"""Find the class that a section names: a built-in class, an entry point or a dotted path."""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from inspect import Parameter, get_annotations, isabstract, signature
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.base import Algorithm
from hpcfl.data import SOURCES
from hpcfl.data.base import DataConfig
from hpcfl.errors import HpcflError, JobError, described, traceback_hint, user_code_location
from hpcfl.models import MODELS
from hpcfl.models.base import ModelConfig
from hpcfl.models.module import MAKER
from hpcfl.runs.job_file.words import shown, suggestion
from hpcfl.runs.job_file.yaml_file import JobFile
from hpcfl.user_code.accepts import Accepts, NotAcceptedError
from hpcfl.user_code.find_object import find_object, import_advice
from hpcfl.user_code.names import is_in_file, require_kept

_MAIN = "__main__"
FORMER_HOOKS = {
    "prepare": "broadcast(server, cohort)",
    "start_point": "the first of the two that points(y, local, client) returns",
    "gradient_point": "the second of the two that points(y, local, client) returns",
    "warm_start_client": "init_client(x0, random_init, grad=None)",
    "warm_start_server": "init_server(x0, grad=None)",
    "refuses_optimizer": "resolve(facts), by facts.require_plain_sgd(why)",
    "refuses_statistics": "resolve(facts), by a ValueError that follows from facts.statistics",
    "traffic_note": "a line of the docstring",
}
"""Former names of an algorithm's hooks and attributes, and what serves in their place.

A class with one is refused: nothing would call that hook, and the run would train without it.
"""


class Registry:
    """The classes that one section of a job may name, built in or imported.

    Args:
        section: of the job, such as "algorithm".
        key: of the section that names the class.
        base: the class that all of them derive from.
        known: the built-in classes by name.
    """

    def __init__(self, section: str, key: str, base: type[Any], known: Mapping[str, Any]) -> None:
        self.section, self.key, self.base, self.known = section, key, base, known
        self.accepts = Accepts(expected=f"a class derived from hpcfl's {base.__name__}", base=base)

    def find(self, file: JobFile, name: Any) -> type[Any]:
        """Find a class by its name in a job file.

        Raises:
            JobError: there is no such class, or it cannot be used.
        """
        at = f"{file.where((self.section, self.key))}: {self.section}.{self.key}"
        if name is None:
            raise JobError(f"{at}: missing; expected one of {', '.join(sorted(self.known))}")
        if not isinstance(name, str):
            raise JobError(f"{at}: found {shown(name)}, expected a name")
        if name in self.known:
            return self.checked(at, name, self.known[name])
        if is_in_file(name):
            return self.checked(at, name, _in_kept_file(at, name, self.accepts))
        plugins = entry_points(group=f"hpcfl.{self.section}")
        if name in plugins.names:
            return self.checked(at, name, _imported(at, name, plugins[name].load))
        folder = Path(file.name).parent
        if "." not in name or not all(part.isidentifier() for part in name.split(".")):
            raise JobError(
                f"{at}: found {shown(name)}, expected one of {', '.join(sorted(self.known))}, "
                f"or a dotted path to a class of your own{suggestion(name, self.known)}"
            )
        try:
            found = _imported(at, name, lambda: find_object(name, self.accepts), folder)
        except NotAcceptedError as e:
            raise JobError(f"{at}: {e}{self._advice(name, e.found)}") from e
        return self.checked(at, name, found)

    def checked(self, at: str, name: str, found: Any) -> type[Any]:
        """The class ``found``, whose name is ``name``.

        Raises:
            JobError: it is none that a job may name here.
        """
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise JobError(
                f"{at}: {name!r} is {found!r}, not a subclass of {self.base.__name__}"
                f"{self._advice(name, found)}"
            )
        if isabstract(found):
            lacks = ", ".join(sorted(found.__abstractmethods__))  # type: ignore[attr-defined]
            raise JobError(f"{at}: {name!r} cannot be used, it does not define {lacks}")
        check_names(at, name, found, self.base)
        # Annotations without a field: the class is not a dataclass, so a job could not set them.
        own = {key for key, hint in get_annotations(found).items() if "ClassVar" not in str(hint)}
        if unknown := own - {field.name for field in fields(found)}:
            raise JobError(
                f"{at}: {name!r} has no {', '.join(sorted(unknown))} as a setting; is it decorated "
                "with @dataclass(frozen=True, kw_only=True)?"
            )
        return found

    def _advice(self, name: str, found: Any) -> str:
        packages = {package.partition(".")[0] for package in MAKER.packages}
        is_module = isinstance(found, type) and issubclass(found, nn.Module)
        is_module = is_module or name.partition(".")[0] in packages  # which is not imported here
        if self.base is ModelConfig and is_module:
            return f"; a torch module goes into model: {{name: module, of: {name}}}"
        return ""


def check_names(at: str, name: str, found: type[Any], base: type[Any]) -> None:
    """Refuse methods and attributes of a user's class that nothing would use.

    Args:
        at: where the class is named, for messages.
        name: of the class.
        found: the class.
        base: of hpcfl, whose methods are called.

    Raises:
        JobError: one has a former name, or nearly the name of one of the base class.
    """
    settings = {field.name for field in fields(found)} if is_dataclass(found) else set()
    known = [key for key in vars(base) if key[0] != "_" and key not in settings]
    classes = [
        cls
        for cls in found.__mro__
        if cls.__module__.partition(".")[0] not in ("hpcfl", "builtins", "abc")
    ]
    former = [line for cls in classes for line in _former(cls, settings)]
    if base is Algorithm and former:
        raise JobError(f"{at}: {name!r} is written for other hooks: {'; '.join(former)}")
    for cls in classes:
        for key in sorted(vars(cls).keys() - settings):
            if isinstance(vars(cls)[key], property) and callable(getattr(base, key, None)):
                hook = f"{key}({', '.join(signature(getattr(base, key)).parameters)})"
                raise JobError(f"{at}: {name!r} has a property {key}, expected a method {hook}")
            meant = get_close_matches(key, known, 1, cutoff=0.85)
            if key[0] != "_" and meant and key not in known:
                use, what = ("calls", "method") if callable(vars(cls)[key]) else ("reads", "name")
                raise JobError(
                    f"{at}: {name!r} defines {key}, which nothing {use}; did you mean "
                    f"{meant[0]}? (a {what} of your own begins with an underscore)"
                )


def _former(cls: type[Any], settings: Set[str]) -> Iterator[str]:
    """What a class has of the former hooks of an algorithm, and what serves in its place.

    Args:
        cls: the class.
        settings: names that are keys of the job, not hooks.
    """
    own = vars(cls)
    for key in sorted(FORMER_HOOKS.keys() & own.keys() - settings):
        yield f"{key} is now {FORMER_HOOKS[key]}"
    broadcast = own.get("broadcast")
    if isinstance(broadcast, FunctionType):
        arguments = signature(broadcast, follow_wrapped=False).parameters.values()
        if [one.kind for one in arguments] == [Parameter.POSITIONAL_OR_KEYWORD] * 2:
            yield "broadcast(server) is now broadcast(server, cohort)"
    scope = own.get("full_gradient")
    code = getattr(getattr(scope, "fget", None), "__code__", None)
    if scope == "cohort" or (code is not None and "cohort" in code.co_consts):
        yield (
            'full_gradient "cohort" is now "server", and client.cohort_grad what broadcast puts '
            "of cohort.grads into the message"
        )


def import_dotted(at: str, name: str, accepts: Accepts) -> Any:
    """Import a function or class that a job names by its dotted path.

    Args:
        at: where it is named, for messages.
        name: its dotted path, or ``FILE.py:NAME`` of a file that a run keeps.
        accepts: what the key takes.

    Raises:
        JobError: it is no such path, or cannot be imported, or is something else.
    """
    if is_in_file(name):
        return _in_kept_file(at, name, accepts)
    parts = name.split(".")
    if len(parts) == 1 or not all(part.isidentifier() for part in parts):
        raise JobError(f"{at}: found {shown(name)}, expected a dotted path, module.name")
    if parts[0] == _MAIN:
        raise JobError(
            f"{at}: found {shown(name)}, which a resume in another process would not find; put it "
            "into a module"
        )
    try:
        return _imported(at, name, lambda: find_object(name, accepts))
    except NotAcceptedError as e:
        raise JobError(f"{at}: {e}") from e


def _in_kept_file(at: str, name: str, accepts: Accepts) -> Any:
    try:
        require_kept(name)
        return _imported(at, name, lambda: find_object(name, accepts))
    except (ValueError, NotAcceptedError) as e:
        raise JobError(f"{at}: {e}") from e


def _imported(at: str, name: str, load: Callable[[], Any], folder: Path = Path()) -> Any:
    try:
        return load()
    except HpcflError:
        raise
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        advice = import_advice(e, name, folder)
        if name.startswith(f"{_MAIN}."):
            advice = (
                "; it is a class of a script or notebook: define it there, and call hpcfl.run, "
                "hpcfl.resume or hpcfl.export in the same process; or put it into a module"
            )
        # With a location, the error is in a module that was found.
        trace = traceback_hint() if user_code_location(e) else ""
        raise JobError(f"{at}: {name!r} cannot be imported{described(e)}{advice}{trace}") from e


REGISTRIES = {
    "data": Registry("data", "kind", DataConfig, SOURCES),
    "model": Registry("model", "name", ModelConfig, MODELS),
    "algorithm": Registry("algorithm", "name", Algorithm, ALGORITHMS),
}


def find_own(at: str, name: str) -> tuple[str, type[Any]] | None:
    """Find a class of the user's: the section that may name it, and the class.

    None where the name is neither a dotted path nor that of an entry point.

    Args:
        at: where it is named, for messages.
        name: its dotted path, or the name of an entry point.

    Raises:
        JobError: it cannot be imported, or is no class that a section may name.
    """
    for section, registry in REGISTRIES.items():
        plugins = entry_points(group=f"hpcfl.{section}")
        if name in plugins.names:
            return section, registry.checked(at, name, _imported(at, name, plugins[name].load))
    if "." not in name:
        return None
    bases = tuple(registry.base for registry in REGISTRIES.values())
    names = ", ".join(base.__name__ for base in bases)
    accepts = Accepts(expected=f"a class derived from one of {names}", base=bases)
    found = import_dotted(at, name, accepts)
    section, registry = next(
        (section, registry)
        for section, registry in REGISTRIES.items()
        if issubclass(found, registry.base)
    )
    return section, registry.checked(at, name, found)


def check_arguments(
    at: str, name: str, make: Callable[..., Any], arguments: Mapping[str, Any], given: int = 0
) -> None:
    """Compare the keys of a section with the arguments of what is called with them.

    Args:
        at: where the keys are, for messages.
        name: of what is called, likewise.
        make: the class or function.
        arguments: the keys and their values.
        given: the number of its first arguments that are no keys.

    Raises:
        JobError: one is unknown, or missing.
    """
    try:
        known = signature(make).parameters
    except ValueError:  # of C code that does not tell
        return
    named = [
        key
        for key, one in known.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ][given:]
    if all(one.kind != one.VAR_KEYWORD for one in known.values()):
        for key in arguments.keys() - set(named):
            has = f"it has {', '.join(named)}" if named else "it takes no argument"
            raise JobError(f'{at}: {name} has no "{key}" ({has}){suggestion(key, named)}')
    for key in named:
        if known[key].default is known[key].empty and key not in arguments:
            raise JobError(f"{at}.{key}: missing; {name} needs it")
