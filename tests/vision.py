"""Importing torchvision, which may have been built for another torch, to compare with it."""

import re
import sys
from importlib import import_module
from types import ModuleType

import pytest
import torch

_declared: list[torch.library.Library] = []  # operators last as long as their library object


def torchvision() -> ModuleType:
    """The package, imported when first needed.

    PyPI's torchvision is a CUDA build.  Beside a CPU build of torch its extension does not load,
    and its import fails on the first operator that only the extension declares.  Declaring these
    is enough for models and transforms; what needs compiled code stays unavailable and says so.
    """
    missing: set[str] = set()
    while True:
        try:
            return import_module("torchvision")
        except ModuleNotFoundError:
            pytest.skip("torchvision is absent")
        except RuntimeError as error:
            absent = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if absent is None or absent[1] in missing:
                raise
            missing.add(absent[1])
            _forget()
            _declare(absent[1])


def _forget() -> None:
    """Drop the half-imported package, so that the next import starts afresh."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare(operator: str) -> None:
    """Tell torch that the operator exists, without giving it a body."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
