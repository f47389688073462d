"""Digests of the files that define the user's classes, to notice that one was edited.

Files of installed packages are not among them.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

from torch import nn

from hpcfl.algorithms.optim import Own
from hpcfl.algorithms.optim.own import OPTIMIZER
from hpcfl.clients.step_schedule import STEP_SCHEDULE, OwnSchedule
from hpcfl.errors import is_of_user
from hpcfl.evaluation.user_metrics import METRIC
from hpcfl.io import regular
from hpcfl.job.callbacks import CALLBACK
from hpcfl.job.schema import Job
from hpcfl.models.base import ModelConfig
from hpcfl.models.module import MAKER, Module
from hpcfl.models.training_loss import LOSS, OwnLoss
from hpcfl.user_code.accepts import Accepts
from hpcfl.user_code.find_object import find_object
from hpcfl.user_code.names import digest_of


def code_digests(job: Job, model: nn.Module | None = None) -> dict[str, str]:
    """The digest of each file that defines a class or function that the job uses, by module.

    The modules that such a file imports are among them, those that these import, and the packages
    that they are in.

    Args:
        job: names the classes.
        model: of the job, once it is built.
    """
    found: dict[str, str] = {}
    waiting = [*_named(job), *_of_model(job.model, model)]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if module is None or name in found:
            continue
        own = vars(module)  # a module's own __getattr__ may answer for any name
        waiting += own.get("__kept_modules__", ())
        file = Path(own.get("__file__") or "")
        if not (is_of_user(file) and file.is_file()):
            continue
        content = regular.read(file)
        found[name] = digest_of(content)
        waiting += [*_imports(content, module), name.rpartition(".")[0]]
    return dict(sorted(found.items()))


def edited(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The modules that are in both, with another digest."""
    return [module for module, digest in now.items() if before.get(module, digest) != digest]


def _named(job: Job) -> Iterator[str]:
    """The modules of the classes and functions that the job names, but for its model."""
    for made in (job.algorithm, job.data):
        yield type(made).__module__
    for path in job.evaluate.metrics:
        yield _module_of(path, METRIC)
    for entry in job.callbacks:
        yield _module_of(entry if isinstance(entry, str) else entry["name"], CALLBACK)
    if isinstance(job.loss, OwnLoss):
        yield _module_of(job.loss.of, LOSS)
    if isinstance(job.local.optimizer, Own):
        yield _module_of(job.local.optimizer.of, OPTIMIZER)
    if isinstance(job.local.step_schedule, OwnSchedule):
        yield _module_of(job.local.step_schedule.of, STEP_SCHEDULE)


def _of_model(config: ModelConfig, model: nn.Module | None) -> Iterator[str]:
    """The modules of the model's configuration, of what makes it, and of its layers."""
    yield type(config).__module__
    if isinstance(config, Module):
        yield _module_of(config.of, MAKER)
    if model is not None:
        yield from (type(layer).__module__ for layer in model.modules())


def _module_of(path: str, accepts: Accepts) -> str:
    """The module that defines a class or a function; "" if it cannot be imported."""
    try:
        return getattr(find_object(path, accepts), "__module__", "")
    except Exception:  # noqa: BLE001  raised again, with a message, where it is made
        return ""


def _imports(content: bytes, module: ModuleType) -> Iterator[str]:
    """The names that a source imports; of ``from a import b`` both a and a.b."""
    try:
        tree = ast.parse(content)
    except SyntaxError:  # it was edited since it was imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            if node.level:
                try:
                    name = resolve_name(name, module.__package__ or "")
                except ImportError:  # of an import that failed, or was never executed
                    continue
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)
