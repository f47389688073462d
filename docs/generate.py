"""A Sphinx extension that writes the parts of pages which the program itself describes.

A page says by the line ``<!-- generate: keys -->`` where a part belongs.  A key, a command or an
algorithm that changes is changed on its page by the next `make docs`.
"""

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.optim import OPTIMIZERS
from hpcfl.cli.parser import parser
from hpcfl.clients.sampling import CohortConfig
from hpcfl.clients.step_schedule import STEP_SCHEDULES
from hpcfl.data import SOURCES
from hpcfl.data.base import DataConfig
from hpcfl.data.partition import Partition
from hpcfl.job.description import REQUIRED, Setting, kinds, settings, summary
from hpcfl.job.load import limits
from hpcfl.job.schema import SECTIONS, Job
from hpcfl.job.tasks import TASKS
from hpcfl.models import MODELS
from hpcfl.models.base import ModelConfig
from hpcfl.models.training_loss import TRAINING_LOSSES
from hpcfl.runs.job_file.resume_rules import is_mutable
from hpcfl.tools.listing import multiples

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def keys() -> Iterator[str]:
    """The keys of a job, section by section."""
    yield "## Top level\n"
    yield from _list(Job, "")
    yield "\n`task` is one of these:\n\n| `task` | data | model |\n|---|---|---|"
    for name, parts in TASKS.items():
        yield f"| `{name}` | `{parts['data']['kind']}` | `{parts['model']['name']}` |"
    yield "\n## `data`\n\nKeys of every data set; `data.kind` names it.\n"
    yield from _list(DataConfig, "data.")
    yield "\n## `data.partition`\n\nHow the training examples are divided among clients."
    yield from _choices("data.partition.kind", "data.partition.", kinds(Partition))
    yield "\n## `model`\n\nKeys of every model; `model.name` names it.\n"
    yield from _list(ModelConfig, "model.")
    yield "\n## `cohort`\n\nThe clients of each round, by `cohort.kind`."
    yield from _choices("cohort.kind", "cohort.", kinds(CohortConfig))
    yield "\n## `algorithm`\n\nKeys of every algorithm; `algorithm.name` names it, and"
    yield "[Algorithms](algorithms.md) has the keys of each.\n"
    yield from _list(Algorithm, "algorithm.")
    for name, cls in SECTIONS.items():
        yield f"\n## `{name}`\n\n{_prose(summary(cls))}\n"
        yield from _list(cls, f"{name}.")
    yield "\n## `local.optimizer`\n\nA name, or a section of `kind` and its keys: "
    yield "`local.optimizer=adamw` and `local.optimizer={kind: adamw, b2: 0.95}`."
    yield from _choices("local.optimizer.kind", "local.optimizer.", OPTIMIZERS)
    yield "\n## `local.step_schedule`\n\nA name, or a section of `kind` and its keys:"
    yield "`local.step_schedule=cosine` and `local.step_schedule={kind: cosine, warmup: 1000}`."
    yield from _choices("local.step_schedule.kind", "local.step_schedule.", STEP_SCHEDULES)
    yield "\n## `loss`\n\nA name, or a section of `kind` and its keys: `loss=focal` and"
    yield "`loss={kind: focal, gamma: 1}`; `data` is the data set's."
    yield from _choices("loss.kind", "loss.", TRAINING_LOSSES)
    yield "\n## Keys of single data sets\n\n[Data sets](../data/README.md) says more."
    yield from _choices("data.kind", "data.", SOURCES, DataConfig)
    yield "\n## Keys of single models\n\n[Models](models.md) says more."
    yield from _choices("model.name", "model.", MODELS, ModelConfig)


def algorithms() -> Iterator[str]:
    """Every algorithm: the header of its file, its traffic and its keys."""
    for name, cls in ALGORITHMS.items():
        # What has no default is a number, and some sizes may depend on it.
        required = [key.name for key in settings(cls) if key.default == REQUIRED]
        sizes = zip(*(multiples(cls(**dict.fromkeys(required, n))) for n in (1, 2)), strict=True)
        down, up, kept, server = (one if one == other != "-" else "a part" for one, other in sizes)
        yield f"\n### `{name}`\n\n```text"
        yield inspect.cleandoc(inspect.getmodule(cls).__doc__) + "\n```\n"
        yield f"Sent down {down}, sent up {up}, kept per client {kept}, kept by the server"
        yield f"{server}, in vectors of the model's size.\n"
        own = settings(cls, Algorithm)
        if own:
            yield from (_item(key, "algorithm.") for key in own)


def commands() -> Iterator[str]:
    """Every command with its arguments and options, from the parser of the command line."""
    yield from _commands(parser())


def _commands(above: argparse.ArgumentParser) -> Iterator[str]:
    for action in above._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        about = {choice.dest: choice.help for choice in action._choices_actions}
        for name, command in action.choices.items():
            if name not in about:  # an old name, which the help does not list either
                continue
            yield from _commands(command)
            if not command._defaults.get("command"):
                continue
            command.formatter_class = partial(argparse.HelpFormatter, width=90)  # not a terminal's
            usage = re.sub(r"^(usage: | {7})", "", command.format_usage(), flags=re.MULTILINE)
            said = command.description or about[name]
            yield f"\n### `{command.prog}`\n\n{said[0].upper()}{said[1:].rstrip('.')}.\n"
            yield f"```text\n{usage}```\n\n| argument | |\n|---|---|"
            yield from filter(None, map(_argument, command._actions))


def _argument(action: argparse.Action) -> str | None:
    """The row of an argument; None if the help does not list it."""
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
        return None
    value = "" if action.nargs == 0 else f" {_metavar(action)}"
    names = ", ".join(action.option_strings) + value if action.option_strings else _metavar(action)
    return f"| `{names}` | {_cell(action.help or '')} |"


def _metavar(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _choices(
    key: str, prefix: str, known: Mapping[str, type[Any]], base: type[Any] | None = None
) -> Iterator[str]:
    """A heading and a list for each class that a key can name."""
    for name, cls in known.items():
        yield f"\n### `{key}: {name}`\n\n{_prose(summary(cls))}\n"
        yield from _list(cls, prefix, base)


def _list(cls: type[Any], prefix: str, base: type[Any] | None = None) -> Iterator[str]:
    return (_item(key, prefix) for key in settings(cls, base))


def _item(key: Setting, prefix: str) -> str:
    """A key in a list, as the columns of a table are too narrow on a phone."""
    path = f"{prefix}{key.name}"
    section = key.values == "section" and not prefix
    name = f"[`{path}`](#{key.name})" if section else f"`{path}`"
    values = ", ".join([key.values, *limits(tuple(path.split(".")))])
    default = {None: "", REQUIRED: "; required"}.get(key.default, f"; default `{key.default}`")
    change = " *May change at a resume.*" if is_mutable(path, {}) else ""
    return f"- {name} ({_prose(values)}{default}): {_prose(key.meaning)}{change}"


def _cell(text: str) -> str:
    """The text for a cell of a table, in which a bar would end it."""
    return _prose(text).replace("|", "\\|")


def _prose(text: str) -> str:
    """The text without markup but for code: Markdown would read train/*.json as emphasis."""
    text = re.sub(r"(`+[^`]*`+)|\*", lambda found: found[1] or "\\*", text)
    return text.replace("<", "&lt;")


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "keys": keys,
    "algorithms": algorithms,
    "commands": commands,
}
MARK = re.compile(r"^<!-- generate: (\w+) -->$", re.MULTILINE)


def fill(text: str) -> str:
    """The text of a page with its generated parts.

    Raises:
        KeyError: it asks for a part that does not exist.
    """
    return MARK.sub(lambda mark: "\n".join(PARTS[mark[1]]()), text)


def _fill(app: "Sphinx", page: str, source: list[str]) -> None:
    source[0] = fill(source[0])


def setup(app: "Sphinx") -> Mapping[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
