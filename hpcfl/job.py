"""The typed job: what a run is to do, checked before anything is loaded or trained."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict as as_tree
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from difflib import get_close_matches
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import entry_points
from json import dumps
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.base import Algorithm
from hpcfl.data import SOURCES
from hpcfl.data.base import DataConfig
from hpcfl.errors import JobError
from hpcfl.jobfile import JobFile, Key, Tree, override, plain, read, tuples
from hpcfl.local.step import Local
from hpcfl.models import MODELS
from hpcfl.models.base import ModelConfig
from hpcfl.sampling import CohortConfig
from hpcfl.tasks.presets import TASKS
from hpcfl.types import Count, NonNegative, Positive, Section, Seed

Precision = Literal["float32", "float64", "bf16", "tf32"]


@dataclass(frozen=True, kw_only=True)
class Evaluate(Section):
    """When the global model is evaluated; the last round always is."""

    every: Count | None = None
    """At every multiple of so many rounds; never before the last round when absent."""
    last: int = 0
    """And at every one of the last so many rounds."""
    batch_size: Count = 500
    """Examples a batch, for evaluation and for full-batch gradients."""

    def due(self, round: int, rounds: int) -> bool:
        """Whether the model after ``round`` rounds is evaluated."""
        regular = self.every is not None and round % self.every == 0
        return regular or round > rounds - self.last or round == rounds


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Section):
    """When a run can be taken up again; the last round always can."""

    every: Count = 500
    """At every multiple of so many rounds."""
    minutes: Positive | None = None
    """And when so many minutes have passed since the last."""
    keep: Count = 2
    """How many checkpoints are kept, each complete."""

    def due(self, round: int, rounds: int) -> bool:
        """Whether a checkpoint is committed after ``round`` rounds, whatever the clock says."""
        return round % self.every == 0 or round == rounds


@dataclass(frozen=True, kw_only=True)
class Store(Section):
    """Where client states live."""

    kind: Literal["hdf5", "memory"] = "hdf5"
    cache_gib: NonNegative = 1.0
    """Host memory per rank for states, in GiB."""


@dataclass(frozen=True, kw_only=True)
class CommConfig(Section):
    """How ranks speak to each other."""

    backend: Literal["auto", "mpi", "gloo", "nccl"] = "auto"
    timeout_s: Positive = 600.0
    """Seconds without an answer after which Gloo and NCCL give up."""


@dataclass(frozen=True, kw_only=True)
class Job(Section):
    """Everything that determines a run."""

    task: str | None = None
    data: DataConfig
    model: ModelConfig
    cohort: CohortConfig
    algorithm: Algorithm
    local: Local
    weights: Literal["examples", "uniform"] = "examples"
    """Aggregation weights: p_i = n_i / sum n, or 1 / |S|."""
    precision: Precision = "float32"
    rounds: Count
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    seed: Seed = 0
    executor: Literal["sequential"] = "sequential"
    threads: Count = 1
    """Threads of one rank on the CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    reduction: Literal["exact", "fast"] = "exact"
    store: Store = field(default_factory=Store)
    comm: CommConfig = field(default_factory=CommConfig)


# The job less the sections whose class is chosen by name.
_REST = make_dataclass(
    "Rest",
    [(f.name, f.type, f) for f in fields(Job) if f.name not in ("data", "model", "algorithm")],
    bases=(Section,),
    frozen=True,
    kw_only=True,
)


class Kind:
    """A section whose class is chosen by name: a registry, an entry point or a dotted path."""

    def __init__(self, section: str, key: str, base: type[Any], known: Mapping[str, Any]) -> None:
        self.section, self.key, self.base, self.known = section, key, base, known

    def find(self, file: JobFile, name: Any) -> type[Any]:
        """The class called ``name``.

        Raises:
            JobError: there is none.
        """
        at = f"{file.where((self.section, self.key))}: {self.section}.{self.key}"
        if name is None:
            raise JobError(f"{at}: missing; expected one of {', '.join(sorted(self.known))}")
        if not isinstance(name, str):
            raise JobError(f"{at}: found {name!r}, expected a name")
        if name in self.known:
            return self._checked(at, name, self.known[name])
        plugins = entry_points(group=f"hpcfl.{self.section}")
        if name in plugins.names:
            return self._checked(at, name, plugins[name].load())
        module, _, attribute = name.rpartition(".")
        if not module:
            raise JobError(
                f"{at}: there is no {self.section} {name!r}"
                f"{suggestion(name, self.known)} Known: {', '.join(sorted(self.known))}; "
                "or a dotted path to a class of your own"
            )
        try:
            return self._checked(at, name, getattr(import_module(module), attribute))
        except (ImportError, AttributeError) as e:
            raise JobError(f"{at}: {name!r} cannot be imported: {e}") from e

    def _checked(self, at: str, name: str, found: Any) -> type[Any]:
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise JobError(f"{at}: {name!r} is {found!r}, not a subclass of {self.base.__name__}")
        return found


KINDS = {
    "data": Kind("data", "kind", DataConfig, SOURCES),
    "model": Kind("model", "name", ModelConfig, MODELS),
    "algorithm": Kind("algorithm", "name", Algorithm, ALGORITHMS),
}


@dataclass(frozen=True)
class Loaded:
    """A checked job, and the tree it is written as."""

    job: Job
    tree: Tree
    name: str
    """The file's name without its ending, and a short hash of the overrides if there are any."""


def load(job: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Loaded:
    """Read and check a job, a file or a mapping; ``key.path=value`` overrides come last.

    Raises:
        JobError: where, what was found, what was expected.
    """
    if isinstance(job, Mapping):
        file, name = JobFile("job", tuples(job)), "job"
    else:
        file, name = read(job), Path(job).stem
    override(file, overrides)
    if overrides:
        name += "-" + blake2b("\0".join(sorted(overrides)).encode(), digest_size=3).hexdigest()
    return check(file, name)


def check(file: JobFile, name: str) -> Loaded:
    """Check a job that was read."""
    _lay_under(file)
    rest: Tree = dict(file.tree)
    sections: dict[str, Any] = {}
    for section, kind in KINDS.items():
        raw = rest.pop(section, {})
        if not isinstance(raw, dict):
            at = file.where((section,))
            raise JobError(f"{at}: {section}: expected a section, found {raw!r}")
        cls = kind.find(file, raw.get(kind.key))
        own = {key: value for key, value in raw.items() if key != kind.key}
        sections[section] = _build(cls, own, file, (section,))
    job = Job(**sections, **vars(_build(_REST, rest, file, ())))
    tree: Tree = plain(as_tree(job))
    for section, kind in KINDS.items():
        tree[section] = {kind.key: file.tree[section][kind.key], **tree[section]}
    return Loaded(job, tree, name)


def settled(loaded: Loaded, algorithm: Algorithm) -> Loaded:
    """The job with the algorithm's defaults that depend on the population filled in."""
    tree = {**loaded.tree, "algorithm": {"name": loaded.tree["algorithm"]["name"]}}
    tree["algorithm"] |= plain(as_tree(algorithm))
    return replace(loaded, job=replace(loaded.job, algorithm=algorithm), tree=tree)


def suggestion(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The end of a sentence about an unknown name: a near one that is known, if there is one."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else "."


def _lay_under(file: JobFile) -> None:
    """Put the task's sections under the user's, whose keys win."""
    task = file.tree.get("task")
    if task is None:
        return
    at = f"{file.where(('task',))}: task"
    if not isinstance(task, str) or task not in TASKS:
        hint = suggestion(str(task), TASKS)
        raise JobError(f"{at}: there is no task {task!r}{hint} Known: {', '.join(sorted(TASKS))}")
    for section, defaults in TASKS[task].items():
        own = file.tree.get(section, {})
        key = KINDS[section].key
        if isinstance(own, dict) and own.get(key, defaults[key]) == defaults[key]:
            file.tree[section] = {**defaults, **own}


def _build(cls: type[Any], raw: Tree, file: JobFile, at: Key) -> Any:
    try:
        # As JSON, where strict types still let a mapping be a section and a list be a tuple.
        return TypeAdapter(cls).validate_json(dumps(raw, default=str))
    except ValidationError as e:
        fault = min(e.errors(), key=lambda fault: fault["type"] != "unexpected_keyword_argument")
        raise JobError(_line(fault, cls, raw, file, at)) from e


def _line(fault: ErrorDetails, cls: type[Any], raw: Tree, file: JobFile, at: Key) -> str:
    """A fault of a section in one line: where, found, expected, what to do."""
    path = _without_tags(fault["loc"], raw)
    key, found = (*at, *path), fault["input"]
    where = f"{file.where(key)}: {'.'.join(map(str, key))}" if key else file.name
    match fault["type"]:
        case "unexpected_keyword_argument":
            known = sorted(_keys(cls, path[:-1], raw))
            owner = raw_name(file, at) or ".".join(map(str, key[:-1])) or "a job"
            hint = suggestion(str(key[-1]), known)
            return f'{where}: {owner} has no "{key[-1]}"{hint} It has: {", ".join(known)}'
        case "missing":
            return f"{where}: missing; it has no default, so the job must say it"
        case "union_tag_not_found" | "union_tag_invalid":
            return f"{where}: {fault['msg']}"
        case "value_error":
            return f"{where}: {fault['msg'].removeprefix('Value error, ')}"
        case _:
            return f"{where}: found {found!r}: {fault['msg'].lower()}{_trap(found)}"


def raw_name(file: JobFile, at: Key) -> str | None:
    """The name a job gives to the class of a section, if its class is chosen by name."""
    if not at:
        return None
    section = str(at[0])
    name: str | None = file.tree[section].get(KINDS[section].key)
    return name


def _without_tags(loc: tuple[int | str, ...], raw: Any) -> Key:
    """Pydantic's location without the tags of unions, which are no keys of the file."""
    path: list[int | str] = []
    for depth, part in enumerate(loc):
        present = part in raw if isinstance(raw, dict) else isinstance(part, int)
        if present:
            raw = raw[part]
        elif depth < len(loc) - 1:
            continue
        path.append(part)
    return tuple(path)


def _keys(cls: type[Any], path: Key, raw: Any) -> set[str]:
    """The keys that the section at ``path`` below ``cls`` may have."""
    for part in path:
        raw = raw[part]
        hint = get_type_hints(cls)[str(part)]
        options = [c for c in (hint, *get_args(hint)) if isinstance(c, type) and is_dataclass(c)]
        cls = next(
            (c for c in options if getattr(c, "kind", None) == raw.get("kind", "")), options[0]
        )
    return {f.name for f in fields(cls)}


def _trap(found: Any) -> str:
    """What to do about values that YAML reads otherwise than people do."""
    if isinstance(found, bool):
        return "; YAML reads on, off, yes and no as true and false: use quotes for text"
    if not isinstance(found, str):
        return ""
    try:
        number = float(found)
    except ValueError:
        return ""
    written = repr(int(number)) if number.is_integer() else _yaml_float(number)
    return f"; YAML reads it as text: write {written}"


def _yaml_float(number: float) -> str:
    """A number as YAML wants it: a point before the exponent."""
    mantissa, e, exponent = f"{number:g}".partition("e")
    return mantissa + ("" if "." in mantissa or not e else ".0") + e + exponent
