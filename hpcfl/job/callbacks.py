"""Import the callbacks that a job names, check their classes, and make them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcfl.engine.callbacks import HOOKS, Callback, advice, undisturbed
from hpcfl.errors import JobError, as_job_error, defined, described
from hpcfl.io.packages import installed, refuse_shadow
from hpcfl.job.registry import check_arguments, check_names, import_dotted
from hpcfl.runs.job_file.words import shown, suggestion
from hpcfl.seeds import key
from hpcfl.types import DottedPath
from hpcfl.user_code.accepts import Accepts
from hpcfl.user_code.names import short_name

_UNMADE = "cannot be made"
_OF_HPCFL = {
    "tensorboard": ("hpcfl.tools.callbacks.tensorboard.TensorBoard", "tensorboard"),
    "wandb": ("hpcfl.tools.callbacks.wandb.Wandb", "wandb"),
    "mlflow": ("hpcfl.tools.callbacks.mlflow.Mlflow", "mlflow-skinny"),
}
"""The class of each short name, and the package to install; it is imported by the short name."""
CALLBACK = Accepts(expected="a class derived from hpcfl.Callback", base=Callback)
CallbackEntry = DottedPath | dict[str, Any]
"""A class: ``tensorboard``, ``wandb``, ``mlflow`` or its dotted path.

Or a section of it as ``name`` and the arguments of the constructor.
"""


def check_callbacks(entries: Sequence[CallbackEntry], where: Callable[[int], str]) -> None:
    """Import the callbacks of a job; none is made.

    Args:
        entries: of the key ``callbacks``.
        where: gives an entry's place, for messages.

    Raises:
        JobError: a class cannot be imported, or an argument is unknown or missing.
    """
    for index, entry in enumerate(entries):
        _found(entry, where(index))


def make_callbacks(entries: Sequence[CallbackEntry], seed: int) -> list[tuple[str, Callback]]:
    """Make the callbacks of a job, each with its name; on rank 0 alone.

    Args:
        entries: of the key ``callbacks``.
        seed: of the job.

    Raises:
        JobError: a class cannot be imported or made, or an argument is unknown or missing.
    """
    return [_make(entry, index, seed) for index, entry in enumerate(entries)]


def _make(entry: CallbackEntry, index: int, seed: int) -> tuple[str, Callback]:
    at = f"callbacks.{index}"
    name, cls, arguments = _found(entry, at)
    with as_job_error(f"{at}: {name}", _UNMADE, defined(cls.__init__)):
        try:
            with undisturbed(key(seed, f"callback {index} made")):
                return name, cls(**arguments)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as e:  # of sys.exit
            raise JobError(f"{at}: {name}: {_UNMADE}{described(e)}{advice(e)}") from e


def _found(entry: CallbackEntry, at: str) -> tuple[str, type[Callback], dict[str, Any]]:
    """The name of an entry, its class and the arguments of its constructor."""
    section: Mapping[str, Any] = {"name": entry} if isinstance(entry, str) else entry
    name = section.get("name")
    if not isinstance(name, str):
        state = "missing" if name is None else f"found {shown(name)}"
        raise JobError(f"{at}.name: {state}; expected a dotted path to a class, module.Class")
    cls, name = import_dotted(at, _dotted_path(at, name), CALLBACK), short_name(name)
    _check_class(at, name, cls)
    arguments = {key: value for key, value in section.items() if key != "name"}
    with as_job_error(f"{at}: {name}", _UNMADE, defined(cls.__init__)):
        check_arguments(at, name, cls, arguments)
    return name, cls, arguments


def _dotted_path(at: str, name: str) -> str:
    """The dotted path of a class, which may be one of hpcfl's by its short name.

    Raises:
        JobError: there is no such class, or the package that it needs is not installed.
    """
    if "." in name:
        return name
    if name not in _OF_HPCFL:
        raise JobError(
            f"{at}: found {shown(name)}, expected {', '.join(sorted(_OF_HPCFL))} or a dotted path "
            f"to a class, module.Class{suggestion(name, _OF_HPCFL)}"
        )
    path, package = _OF_HPCFL[name]
    refuse_shadow(name)
    if not installed(name):
        raise JobError(
            f"{at}: found {name}, but no package {name}; say `pip install {package}`, or leave it "
            "out"
        )
    return path


def check_callback_objects(at: str, found: Sequence[Any]) -> None:
    """Refuse what is no list of callbacks.

    Args:
        at: where they were given, for messages.
        found: objects of a call from Python.

    Raises:
        JobError: one is another object, or a class of which nothing would be called.
    """
    listed = isinstance(found, list | tuple)
    one: Any
    for one in found if listed else [found]:
        if not (listed and isinstance(one, Callback)):
            made = isinstance(one, type) and issubclass(one, Callback)
            cure = f"; make one: {one.__name__}()" if made else ""
            raise JobError(
                f"{at}: found {shown(one)}, expected a list of objects whose classes are derived "
                f"from hpcfl.Callback{cure}"
            )
        _check_class(at, type(one).__qualname__, type(one))


def _check_class(at: str, name: str, cls: type[Callback]) -> None:
    """Refuse a class of which nothing would be called, or whose methods cannot be.

    Raises:
        JobError: it defines none of them, or one by nearly its name, or with other arguments.
    """
    check_names(at, name, cls, Callback)
    if all(getattr(cls, hook) is getattr(Callback, hook) for hook in HOOKS):
        raise JobError(f"{at}: {name} defines none of {', '.join(HOOKS)}, so nothing would call it")
    for hook in HOOKS:
        own, base = (inspect.signature(getattr(of, hook)) for of in (cls, Callback))
        try:
            own.bind(*base.parameters)
        except TypeError as e:
            raise JobError(
                f"{at}: {name}.{hook}{defined(getattr(cls, hook))} takes "
                f"({', '.join(own.parameters)}), expected ({', '.join(base.parameters)})"
            ) from e
