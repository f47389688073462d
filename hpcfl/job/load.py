"""Read a job from its file and overrides into typed sections, and check all of its keys.

Nothing is loaded or trained: what is checked needs neither data nor a device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, make_dataclass
from functools import cache
from json import dumps
from pathlib import Path, PurePath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hpcfl.algorithms.dpfedavg import DPFedAvg
from hpcfl.algorithms.optim import Optimizer, Own
from hpcfl.algorithms.optim.own import OPTIMIZER
from hpcfl.clients.section import Local
from hpcfl.clients.step_schedule import STEP_SCHEDULE, OwnSchedule
from hpcfl.data.base import DataConfig
from hpcfl.errors import BrokenRuleError, JobError, as_job_error, defined
from hpcfl.evaluation.user_metrics import METRIC, UserMetric
from hpcfl.job.callbacks import check_callbacks
from hpcfl.job.messages import validation_message
from hpcfl.job.registry import REGISTRIES, check_arguments, import_dotted
from hpcfl.job.resolve import carried_statistics
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.job.tasks import TASKS
from hpcfl.models.training_loss import LOSS, OwnLoss, TrainingLoss
from hpcfl.runs.job_file.packaged import find_job
from hpcfl.runs.job_file.record import is_record, read_record
from hpcfl.runs.job_file.run_name import run_name
from hpcfl.runs.job_file.words import SECTION, shown, suggestion
from hpcfl.runs.job_file.yaml_file import (
    JobFile,
    Key,
    Tree,
    drop_former_keys,
    from_python,
    override,
    read,
    tuples,
)
from hpcfl.types import Section
from hpcfl.user_code.names import short_name

# The job less the sections whose class is chosen by name.
_REST = make_dataclass(
    "Rest",
    [(f.name, f.type, f) for f in fields(Job) if f.name not in ("data", "model", "algorithm")],
    bases=(Section,),
    frozen=True,
    kw_only=True,
)


JobSource = str | Path | Mapping[str, Any]
"""A job file, the name of a packaged job, the record of a run, or a mapping as in a file."""


def load(job: JobSource, overrides: Sequence[str] = ()) -> LoadedJob:
    """Read and check a job; ``key.path=value`` overrides come last.

    Args:
        job: a file, the name of a job that is installed with hpcfl, or a mapping.
        overrides: settings over those of the job.

    Raises:
        JobError: where, what was found, what was expected.
    """
    file = open_job(job)
    override(file, overrides)
    return check(file, run_name(file.name, overrides))


def open_job(job: JobSource) -> JobFile:
    """Read a job; nothing is checked but that it is one.

    Raises:
        JobError: the file cannot be read, or is no YAML mapping, or a mapping holds other objects.
        StoreError: it is the record of a run, and was changed.
    """
    if isinstance(job, Mapping):
        return JobFile("job", tuples(from_python(job, "job")))
    if not isinstance(job, str | PurePath):
        raise JobError(
            f"job: found {shown(job)}, expected a job file, the name of a packaged job, or a "
            "mapping as in a file"
        )
    path = find_job(job)
    return read_record(path) if is_record(path) else read(path)


def check(file: JobFile, name: str, *, user_code: bool = True) -> LoadedJob:
    """Check a job that was read.

    Args:
        file: the job.
        name: of the run.
        user_code: whether what only further rounds need is checked, too: metrics, callbacks and the
            code of the model are imported, and the learning rate of the last round is no zero.

    Raises:
        JobError: where, what was found, what was expected.
    """
    loaded = validate_keys(file, name)
    require_runnable(loaded, file, user_code=user_code)
    return loaded


def require_runnable(loaded: LoadedJob, file: JobFile, *, user_code: bool = True) -> None:
    """Refuse what ``validate_keys`` does not see; the arguments are those of ``check``.

    Raises:
        JobError: where, what was found, what was expected.
    """
    _check_sizes(loaded.tree, file)
    _check_coherent(loaded.job, file)
    if user_code:
        try:
            loaded.job.model.check(loaded.job.data)
        except ValueError as e:
            raise JobError(f"{file.where(('model',))}: model.{e}") from e
        _check_user_code(loaded.job, file)
        loaded.job.model.require_code()
        _check_rates(loaded.job, file)


def validate_keys(file: JobFile, name: str) -> LoadedJob:
    """The job of a file that was read, every key checked by itself.

    Raises:
        JobError: one is unknown, missing or of another type.
    """
    if "grid" in file.tree:
        raise JobError(
            f"{file.name}: this is a sweep, not a job; use `hpcfl sweep {file.name}`, which with "
            "--dry-run only checks its jobs, and shows the settings of each over its job"
        )
    drop_former_keys(file.tree)
    add_task_defaults(file)
    rest: Tree = dict(file.tree)
    sections: dict[str, Any] = {}
    for section, kind in REGISTRIES.items():
        raw = rest.pop(section, {})
        if not isinstance(raw, dict):
            at = file.where((section,))
            said = f"{section}: found {shown(raw)}, expected {SECTION}"
            cure = f"; a name goes into {section}.{kind.key}" if isinstance(raw, str) else ""
            raise JobError(f"{at}: {said}{cure}")
        cls = kind.find(file, raw.get(kind.key))
        own = {key: value for key, value in raw.items() if key != kind.key}
        sections[section] = _build(cls, own, file, (section,))
    job = Job(**sections, **vars(_build(_REST, rest, file, ())))
    names = {section: file.tree[section][kind.key] for section, kind in REGISTRIES.items()}
    return LoadedJob(job, names, name)


# The largest values of keys; with larger ones a run would never end, or need all memory.
LARGEST: Mapping[Key, float] = {
    ("rounds",): 1_000_000,  # all cohorts are drawn before round 1
    ("local", "epochs"): 1_000_000,
    ("local", "steps"): 1_000_000_000,
    ("local", "accumulate"): 1024,  # masks of dropout differ among so many calls of a layer
    ("local", "lr"): 1e300,  # a step beyond is no number that torch takes
    ("local", "weight_decay"): 1e300,
    ("algorithm", "tau"): 100_000,
    ("devices", "over_select"): 1000.0,
    ("devices", "jitter"): 10.0,  # exp(10 z) stays a number that times can be compared by
    **{("devices", rate, "sigma"): 10.0 for rate in ("examples_per_s", "down_mbps", "up_mbps")},
    ("checkpoint", "keep"): 1_000_000,
    ("comm", "timeout_s"): 10_000_000.0,
    ("store", "cache_gib"): 1_000_000_000.0,
    ("data", "classes"): 1 << 24,
    ("data", "partition", "alpha"): 1e30,
    ("data", "partition", "exponent"): 1e6,
    ("data", "partition", "sigma"): 1e6,
}
# Smaller rates lose digits, and become zero.
SMALLEST_RATE = {"float32": 2.0**-126, "float64": 2.0**-1022}
SMALLEST: Mapping[Key, float] = {("comm", "timeout_s"): 0.001}
_LARGEST_WHOLE = 2**63 - 1
_ARITHMETIC = 1e30  # larger bounds keep numbers finite, and say nothing to a reader


def limits(path: Key) -> list[str]:
    """The bounds of a key beside those of its class, but those of arithmetic: ["<= 100000"]."""
    return [
        f"{sign} {bounds[path]:.12g}"  # 10000000.0 as 10000000
        for sign, bounds in ((">=", SMALLEST), ("<=", LARGEST))
        if bounds.get(path, _ARITHMETIC) < _ARITHMETIC
    ]


def _check_sizes(tree: Tree, file: JobFile, at: Key = ()) -> None:
    """Refuse numbers that are too large or too small for any run.

    Raises:
        JobError: the first such number, with its file and line.
    """
    for key, value in tree.items():
        path = (*at, key)
        if isinstance(value, list):
            value = dict(enumerate(value))
        if isinstance(value, dict):
            _check_sizes(value, file, path)
            continue
        if not isinstance(value, int | float):
            continue
        where = f"{file.where(path)}: {'.'.join(map(str, path))}"
        most = LARGEST.get(path, _LARGEST_WHOLE if isinstance(value, int) else value)
        if value > most:
            raise JobError(f"{where}: found {shown(value)}, expected a number of at most {most}")
        if value < (least := SMALLEST.get(path, value)):
            raise JobError(f"{where}: found {shown(value)}, expected a number of at least {least}")


def _check_coherent(job: Job, file: JobFile) -> None:
    """Refuse combinations of keys that exclude each other.

    Raises:
        JobError: the first such combination, with its file and line.
    """
    if job.devices is not None:
        try:
            job.devices.asking(job.cohort)
        except ValueError as e:
            raise JobError(f"{file.where(('devices', 'over_select'))}: devices.{e}") from e
        if job.devices.over_select > 1 and isinstance(job.algorithm, DPFedAvg):
            raise JobError(
                f"{file.where(('devices', 'over_select'))}: devices.over_select: found "
                f"{job.devices.over_select:g} with dpfedavg, whose epsilon does not hold where "
                "a client's data decide whether another counts; remove it"
            )
    if job.block_size is not None and job.executor == "sequential":
        said = file.where(("executor",)) if "executor" in file.tree else "its default"
        raise JobError(
            f"{file.where(('block_size',))}: block_size: found with executor sequential ({said}), "
            "which takes one client at a time; say executor: block, or block_size: null"
        )
    if job.local.accumulate > 1 and job.executor not in ("sequential", "auto"):
        raise JobError(
            f"{file.where(('local', 'accumulate'))}: local.accumulate: found "
            f"{job.local.accumulate} with executor {job.executor}, which computes whole batches of "
            "many clients at once; say executor: sequential, or a smaller block_size and "
            "accumulate: 1"
        )
    own_models = job.algorithm.has_personal_models or carried_statistics(job) == "local"
    if job.evaluate.personal is True and not own_models:
        raise JobError(
            f"{file.where(('evaluate', 'personal'))}: evaluate.personal: "
            f"{file.tree['algorithm']['name']} makes no models of the clients' own, as fedper and "
            "ditto do; remove the key, or set evaluate.personal.steps to score fine-tuned models"
        )


def _check_rates(job: Job, file: JobFile) -> None:
    """Refuse a decay by which the learning rate is zero before the last round.

    Raises:
        JobError: it is.
    """
    local, least = job.local, SMALLEST_RATE["float64" if job.precision == "float64" else "float32"]
    last = local.lr_of_round(job.rounds - 1, job.rounds)
    if local.lr_decay < 1 and last < least:
        raise JobError(
            f"{file.where(('local', 'lr_decay'))}: local.lr_decay: found {local.lr_decay:g}, which "
            f"leaves a rate of {last:.1e} in round {job.rounds}, no number of the job's precision; "
            "raise it, or lower rounds"
        )


def _check_user_code(job: Job, file: JobFile) -> None:
    """Import what a job names of the user's: metrics, callbacks, optimiser, schedule, loss.

    Raises:
        JobError: one cannot be imported, or is something else.
    """
    at = f"{file.where(('evaluate', 'metrics'))}: evaluate.metrics"
    for path in job.evaluate.metrics:
        found, name = import_dotted(at, path, METRIC), short_name(path)
        make = vars(found).get("__init__", found) if isinstance(found, type) else found
        with as_job_error(f"{at}: {name}", "cannot be made without arguments", defined(make)):
            try:
                UserMetric(path, found)
            except BrokenRuleError as e:
                raise JobError(f"{at}: {name} {e}") from e
    _check_optimizer(f"{file.where(('local', 'optimizer'))}: local.optimizer", job.local.optimizer)
    _check_step_schedule(
        f"{file.where(('local', 'step_schedule'))}: local.step_schedule", job.local, job.rounds
    )
    _check_loss(f"{file.where(('loss',))}: loss", job.loss)
    check_callbacks(
        job.callbacks, lambda index: f"{file.where(('callbacks', index))}: callbacks.{index}"
    )


def _check_optimizer(at: str, optimizer: Optimizer | str) -> None:
    """Import and make the optimiser of a job, where it is a class of the user's.

    Raises:
        JobError: the class cannot be imported or made, or is something else.
    """
    if not isinstance(optimizer, Own):
        return
    cls, name = import_dotted(at, optimizer.of, OPTIMIZER), short_name(optimizer.of)
    with as_job_error(f"{at}: {name}", "cannot be made with its keys", defined(cls.__init__)):
        check_arguments(f"{at}.keys", name, cls, optimizer.keys)
        cls(**optimizer.keys)


def _check_step_schedule(at: str, local: Local, rounds: int) -> None:
    """Import and make the step schedule of a job, where it is the user's; try its first and last.

    Raises:
        JobError: it cannot be imported or made, cannot be called, or gives no factor.
    """
    schedule = local.step_schedule
    if not isinstance(schedule, OwnSchedule):
        return
    found, name = import_dotted(at, schedule.of, STEP_SCHEDULE), short_name(schedule.of)
    make = vars(found).get("__init__", found) if isinstance(found, type) else found
    with as_job_error(f"{at}: {name}", "cannot be called with its keys", defined(make)):
        check_arguments(
            f"{at}.keys", name, found, schedule.keys, given=0 if isinstance(found, type) else 2
        )
        steps = rounds * (local.steps or 1)
        for n in (0, steps - 1):
            schedule.factor(n, steps)


def _check_loss(at: str, loss: TrainingLoss | str) -> None:
    """Import and make the loss of a job, where it is the user's.

    Raises:
        JobError: it cannot be imported or made, or cannot be called.
    """
    if not isinstance(loss, OwnLoss):
        return
    found, name = import_dotted(at, loss.of, LOSS), short_name(loss.of)
    make = vars(found).get("__init__", found) if isinstance(found, type) else found
    with as_job_error(f"{at}: {name}", "cannot be made with its keys", defined(make)):
        check_arguments(
            f"{at}.keys", name, found, loss.keys, given=0 if isinstance(found, type) else 2
        )
        _ = loss.made


def data_section(kind: str, root: str, keys: Sequence[str]) -> DataConfig:
    """Build a ``data`` section alone, from ``key=value`` texts.

    Raises:
        JobError: there is no such data set, or no such key.
    """
    file = JobFile("data", {})
    override(file, [f"data.kind={kind}", *(f"data.{key}" for key in keys)])
    cls = REGISTRIES["data"].find(file, file.tree["data"]["kind"])
    own = {"root": root} if "root" in {field.name for field in fields(cls)} else {}
    own |= {key: value for key, value in file.tree["data"].items() if key != "kind"}
    config: DataConfig = _build(cls, own, file, ("data",))
    return config


def add_task_defaults(file: JobFile) -> None:
    """Add the task's sections; the user's own keys take precedence."""
    task = file.tree.get("task")
    if task is None:
        return
    at = f"{file.where(('task',))}: task"
    if not isinstance(task, str) or task not in TASKS:
        hint = suggestion(str(task), TASKS)
        raise JobError(
            f"{at}: found {shown(task)}, expected one of {', '.join(sorted(TASKS))}{hint}"
        )
    for section, defaults in TASKS[task].items():
        own = file.tree.get(section, {})
        key = REGISTRIES[section].key
        if isinstance(own, dict) and own.get(key, defaults[key]) == defaults[key]:
            file.tree[section] = {**defaults, **own}


def section(cls: type[Any], file: JobFile, name: str) -> Any:
    """Build a section of a file that is not a job.

    Raises:
        JobError: it is no mapping, or a key is unknown, missing or of another type.
    """
    raw = file.tree[name]
    if not isinstance(raw, dict):
        raise JobError(f"{file.where((name,))}: {name}: found {shown(raw)}, expected {SECTION}")
    return _build(cls, raw, file, (name,))


def _build(cls: type[Any], raw: Tree, file: JobFile, at: Key) -> Any:
    where = f"{file.where(at)}: {'.'.join(map(str, at))}"
    # Of a class of the user's its __post_init__ may raise, or a field's type.
    with as_job_error(where, "cannot be read", f" in {cls.__module__}.{cls.__qualname__}"):
        try:
            # As JSON, where strict types still let a mapping be a section and a list be a tuple.
            adapter = _adapter(cls)  # type: ignore[arg-type]  # mypy takes no class as a cache's key
            return adapter.validate_json(dumps(raw, default=str))
        except ValidationError as e:
            raise JobError(validation_message(e.errors(), cls, raw, file, at)) from e


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """The validator of a section; cached, as a sweep validates it once for every run."""
    return TypeAdapter(cls)
