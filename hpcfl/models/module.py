"""Module: a torch module of the user's own, by the name of what makes it."""

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import nn

from hpcfl.errors import (
    HpcflError,
    JobError,
    described,
    traceback_hint,
    user_code_location,
)
from hpcfl.models.base import ModelConfig
from hpcfl.types import DottedPath
from hpcfl.user_code.accepts import Accepts, NotAcceptedError, is_own
from hpcfl.user_code.find_object import find_object, import_advice
from hpcfl.user_code.names import is_in_file, require_kept

_PLAIN = re.compile(r"(\w[\w.-]*)?")  # "ResNet18_Weights.DEFAULT"; no path, no address
GIVEN = ("input_shape", "outputs")  # the arguments that follow from the data


def _is_listed(found: Any) -> bool:
    """Whether torchvision.models or timm lists a function among those that make a model."""
    module, name = getattr(found, "__module__", ""), getattr(found, "__name__", "")
    if f"{module}.".startswith("torchvision.models."):
        models = import_module("torchvision.models")
        return name in models.list_models() and models.get_model_builder(name) is found
    if f"{module}.".startswith("timm.models."):
        models = import_module("timm.models")
        return bool(models.is_model(name) and models.model_entrypoint(name) is found)
    return False


MAKER = Accepts(
    expected="a class of torch modules or a function that makes one, your own or of "
    "torchvision.models or timm.models, or a class of torch.nn, transformers or peft",
    base=nn.Module,
    packages=("torch.nn", "torchvision.models", "timm.models", "transformers", "peft"),
    functions=True,
    listed=_is_listed,
)


@dataclass(frozen=True, kw_only=True)
class Module(ModelConfig):
    """A torch module of your own: any class or function that makes one."""

    of: DottedPath
    """``package.module.NAME`` of the class or function. It is called with ``arguments``, and with
    those of ``input_shape`` and ``outputs`` that it has."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the class or function, by name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_in_file(self.of) or self.of.endswith((".pt", ".pkl")):
            try:
                require_kept(self.of)
            except ValueError as e:
                raise ValueError(f"of: {e}") from e

    takes_names: ClassVar[bool] = True

    def build(
        self, input_shape: tuple[int, ...] | dict[str, tuple[int, ...]], outputs: int
    ) -> nn.Module:
        """Make the module; of a kept one the layers draw new weights, and ``init`` has the kept.

        Each layer draws by its ``reset_parameters``, or ``_reset_parameters`` as torch calls it in
        some; parameters of a kept module's own classes that have neither are not drawn.
        """
        make = self._make()
        if isinstance(make, nn.Module):
            if self.arguments:
                raise JobError(
                    "model.arguments: the model is a module that was made before; leave them out, "
                    "or pass its class"
                )
            module = copy.deepcopy(make)
            drawn: set[nn.Module] = set()

            def draw_once(layer: nn.Module) -> None:  # two layers may share one
                if layer not in drawn:
                    drawn.add(layer)
                    _draw(layer)

            return module.apply(draw_once)  # children first, as a layer may set their parameters
        given = {"input_shape": input_shape, "outputs": outputs}
        known = {name: given[name] for name in data_arguments(make, self.of, self.arguments)}
        model: nn.Module = make(**known, **_copied(self.arguments))
        return model

    def require_code(self) -> None:
        """Import ``of``, and compare ``arguments`` with its signature."""
        make = self._make()
        if not isinstance(make, nn.Module):
            data_arguments(make, self.of, self.arguments)

    def _make(self) -> Any:
        if not is_in_file(self.of) and not self.of.rpartition(".")[0]:
            raise JobError(
                f"model.of: found {self.of!r}, expected package.module.NAME of a class or function"
            )
        try:
            found = find_object(self.of, MAKER)
        except NotAcceptedError as e:
            raise JobError(f"model.of: {e}") from e
        except HpcflError:
            raise
        except (Exception, SystemExit) as e:  # a module may raise anything, as torchvision does
            advice = import_advice(e, self.of)
            trace = traceback_hint() if user_code_location(e) else ""
            raise JobError(
                f"model.of: {self.of!r} cannot be imported{described(e)}{advice}{trace}"
            ) from e
        if not is_in_file(self.of):
            _require_plain(self.of, found, self.arguments)
        return found


def refuse_scripted(where: str, model: nn.Module) -> None:
    """Refuse a module of TorchScript, whose class has no forward of its own and cannot be pickled.

    Raises:
        JobError: it is one; ``where`` begins the message.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise JobError(
            f"{where}: found a module of torch.jit.script or trace, expected a torch.nn.Module; "
            "give the module as it was before (one of its layers may be scripted)"
        )


def _require_plain(name: str, found: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments by which a function of a package may load or write a file.

    timm's, for example, take an address to load weights from, and a folder to save them in.

    Args:
        name: the dotted path.
        found: what it names; the user's own takes any arguments.
        arguments: by name.

    Raises:
        JobError: one is no number, truth value or plain name, and no list of these.
    """
    for key, value in arguments.items():
        if not (_is_plain(value) or is_own(found)):
            raise JobError(
                f"model.arguments.{key}: found {value!r:.80}, expected a number, a truth value, a "
                f"name or a list of these, as {name} is not your own; a function of your own may "
                "call it with anything"
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return _PLAIN.fullmatch(value) is not None
    return value is None or isinstance(value, int | float)


def _draw(layer: nn.Module) -> None:
    """Let a layer draw its own parameters anew, where it has a method for that."""
    reset = getattr(layer, "reset_parameters", None)
    if reset is None:  # nn.MultiheadAttention and nn.Transformer have it by a private name
        reset = getattr(layer, "_reset_parameters", None)
        if callable(reset) and any(_required(reset)):
            return  # another function of that name
    if callable(reset):
        reset()


def _copied(value: Any) -> Any:
    """A copy, which the class may keep and change, with lists for tuples, as in a job file."""
    if isinstance(value, Mapping):
        return {key: _copied(below) for key, below in value.items()}
    return [*map(_copied, value)] if isinstance(value, list | tuple) else value


def data_arguments(make: Any, name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of ``input_shape`` and ``outputs`` that a class or function takes.

    Args:
        make: the class or function.
        name: of it, for messages.
        arguments: others that it is called with, by name.

    Raises:
        JobError: it is not callable, has no argument of such a name, or needs another one.
    """
    if not callable(make):
        raise JobError(f"model.of: {name} is {type(make).__name__}, expected a class or function")
    parameters = inspect.signature(make).parameters
    named = [
        key
        for key, one in parameters.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    own = [key for key in named if key not in GIVEN]
    takes_any = any(one.kind == one.VAR_KEYWORD for one in parameters.values())
    for key, value in arguments.items():
        if key in GIVEN:
            raise JobError(
                f"model.arguments.{key}: {name} gets it from the data of the job; leave it out"
            )
        if key not in named and not takes_any:
            has = f"it has {', '.join(own)}" if own else "it has no arguments of its own"
            similar = get_close_matches(str(key), own, n=1)
            meant = f"; did you mean {similar[0]}?" if similar else ""
            raise JobError(f'model.arguments: {name} has no "{key}" ({has}){meant}')
        if key in named and parameters[key].annotation in (int, float, "int", "float"):
            _require_number(f"model.arguments.{key}", value)
    missing = [key for key in _required(make) if key not in {*GIVEN, *arguments}]
    if missing:
        raise JobError(
            f"model.of: {name} needs {', '.join(missing)}; add model.arguments: "
            f"{{{', '.join(f'{key}: ...' for key in missing)}}}"
        )
    return tuple(key for key in GIVEN if key in named)


def _require_number(where: str, value: Any) -> None:
    """Refuse a text where a class asks for a number.

    Raises:
        JobError: it is a text, such as a number in quotes.
    """
    if isinstance(value, str):
        raise JobError(
            f"{where}: found the text {value!r}, expected a number; in quotes it is text"
        )


def _required(make: Any) -> Iterator[str]:
    for parameter in inspect.signature(make).parameters.values():
        optional = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not optional and parameter.default is parameter.empty:
            yield parameter.name
