"""Importing torchvision, which may have been built for another torch."""

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch

from hpcfl.errors import JobError

_declared: list[torch.library.Library] = []  # operators last as long as their library object


def torchvision() -> ModuleType:
    """The package, imported when first needed.

    PyPI's torchvision is a CUDA build.  Beside a CPU build of torch its extension does not load,
    and its import fails on the first operator that only the extension declares.  Declaring these
    is enough for models, transforms and datasets; what needs compiled code (``ops.nms``, decoding
    JPEG) stays unavailable and says so.

    Raises:
        JobError: it is not installed, or does not fit the torch beside it.
    """
    if find_spec("torchvision") is None:
        raise JobError("torchvision is not installed; install hpcfl[vision], or pip install it")
    missing: set[str] = set()
    while True:
        try:
            return import_module("torchvision")
        except RuntimeError as error:
            absent = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if absent is None or absent[1] in missing:
                raise JobError(
                    f"torchvision does not import beside torch {torch.__version__}: {error}"
                ) from error
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
