"""Module: a torch module of the user's own, by the name of what makes it."""

import inspect
import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from hpcfl.errors import JobError, StoreError, described
from hpcfl.io.code_file import find_object, is_in_file, load_code, read_kept, require_kept
from hpcfl.models.base import ModelConfig
from hpcfl.types import PathText

OBJECT = ".pt"  # the ending of a kept module


@dataclass(frozen=True, kw_only=True)
class Module(ModelConfig):
    """A torch module of your own: any class or function that makes one."""

    of: str
    """``package.module.NAME`` of the class or function. It is called with those of ``input_shape``
    and ``outputs`` that it has as arguments."""
    code: PathText | None = None
    """Where ``of`` is a module that ``hpcfl.run`` kept: the file with its classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, name in (("of", self.of), ("code", self.code)):
            if name is not None and (key == "code" or name.endswith(OBJECT) or is_in_file(name)):
                try:
                    require_kept(name)
                except ValueError as e:
                    raise ValueError(f"{key}: {e}") from e

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Make the module; of a kept one the layers draw new weights, and ``init`` has the kept.

        Parameters of a kept module's own classes that have no ``reset_parameters`` are not drawn.
        """
        if self.of.endswith(OBJECT):
            module = read_module(Path(self.of), Path(self.code) if self.code else None)
            for layer in module.modules():
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()
            return module
        make = self._make()
        given = {"input_shape": input_shape, "outputs": outputs}
        model: nn.Module = make(**{name: given[name] for name in taken(make, self.of)})
        return model

    def _make(self) -> Any:
        if not is_in_file(self.of) and not self.of.rpartition(".")[0]:
            raise JobError(
                f"model.of: found {self.of!r}, expected package.module.NAME of a class or function"
            )
        try:
            return find_object(self.of)
        except (ImportError, AttributeError) as e:
            advice = "set PYTHONPATH=. if it is in the current directory"
            raise JobError(
                f"model.of: {self.of!r} cannot be imported{described(e)}; {advice}"
            ) from e


def taken(make: Any, name: str) -> tuple[str, ...]:
    """Those of ``input_shape`` and ``outputs`` that a class or function takes.

    Raises:
        JobError: it takes no arguments of these names alone, or is not callable.
    """
    if not callable(make):
        raise JobError(f"model.of: {name} is {type(make).__name__}, expected a class or function")
    given = ("input_shape", "outputs")
    required = [name for name in _required(make) if name not in given]
    if required:
        raise JobError(
            f"model.of: {name} needs {', '.join(required)}; expected arguments with defaults, "
            "input_shape and outputs alone: write a function that calls it"
        )
    return tuple(key for key in given if key in inspect.signature(make).parameters)


def _required(make: Any) -> Iterator[str]:
    for parameter in inspect.signature(make).parameters.values():
        optional = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not optional and parameter.default is parameter.empty:
            yield parameter.name


def read_module(path: Path, code: Path | None) -> nn.Module:
    """Read a kept module.

    Args:
        path: the file.
        code: the file that defines the classes that were in ``__main__``; None if there are none.

    Raises:
        StoreError: it is missing or was changed, or a class of it cannot be imported.
    """
    content = read_kept(path)
    main = load_code(code) if code else None

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module == "__main__" and main is not None:
                return getattr(main, name)
            return super().find_class(module, name)

    # torch.load takes a module with these names.
    reader = ModuleType("reader")
    reader.__dict__.update(Unpickler=Unpickler, load=lambda file: Unpickler(file).load())
    try:
        found = torch.load(io.BytesIO(content), "cpu", pickle_module=reader, weights_only=False)
    except Exception as e:
        raise StoreError(
            f"{path}: cannot be read: {type(e).__name__}: {e}; the module's classes must be "
            "importable (PYTHONPATH), and its packages of the versions that the run had"
        ) from e
    if not isinstance(found, nn.Module):
        raise StoreError(f"{path}: holds a {type(found).__name__}, expected a torch.nn.Module")
    return found
