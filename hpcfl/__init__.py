"""hpcfl: federated learning at scale on HPC machines.

From Python, ``hpcfl.run("quickstart", {"rounds": 20})`` does what ``hpcfl run`` does, and takes a
model and data that are Python objects.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.io.version import __version__

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

    from hpcfl.algorithms.base import Algorithm, Message
    from hpcfl.algorithms.facts import Client, Cohort, Facts, Forward, Grad, RandomInit
    from hpcfl.algorithms.optim import Optimizer
    from hpcfl.data.base import DataConfig, Dataset
    from hpcfl.data.objects import Data
    from hpcfl.engine.callbacks import Callback
    from hpcfl.evaluation.user_metrics import Metric
    from hpcfl.models.base import ModelConfig
    from hpcfl.start.result import Result
    from hpcfl.tools.check import CheckedJob
    from hpcfl.tools.plan.show import JobPlan
    from hpcfl.tools.report.layouts import RunsReport
    from hpcfl.types import Examples

_CLASSES = {
    "Algorithm": "hpcfl.algorithms.base",
    "Callback": "hpcfl.engine.callbacks",
    "Client": "hpcfl.algorithms.facts",
    "Cohort": "hpcfl.algorithms.facts",
    "Data": "hpcfl.data.objects",
    "DataConfig": "hpcfl.data.base",
    "Dataset": "hpcfl.data.base",
    "Examples": "hpcfl.types",
    "Facts": "hpcfl.algorithms.facts",
    "Forward": "hpcfl.algorithms.facts",
    "Grad": "hpcfl.algorithms.facts",
    "Message": "hpcfl.algorithms.base",
    "Metric": "hpcfl.evaluation.user_metrics",
    "ModelConfig": "hpcfl.models.base",
    "Optimizer": "hpcfl.algorithms.optim",
    "RandomInit": "hpcfl.algorithms.facts",
    "Result": "hpcfl.start.result",
}
"""Where the classes are that a program of the user's names, so that their files may move."""

__all__ = [
    "Algorithm",
    "Callback",
    "Client",
    "Cohort",
    "Data",
    "DataConfig",
    "Dataset",
    "Examples",
    "Facts",
    "Forward",
    "Grad",
    "Message",
    "Metric",
    "ModelConfig",
    "Optimizer",
    "RandomInit",
    "Result",
    "__version__",
    "check",
    "export",
    "load_model",
    "plan_job",
    "read_log",
    "read_runs",
    "report_runs",
    "resume",
    "run",
]

# torch is imported by the functions that need it: `import hpcfl` is instant.

# For deterministic products on a GPU; cuBLAS reads it before the first product of the process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# A hardware queue for each of 32 lanes, of which several would share one of CUDA's 8; read once.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def __dir__() -> list[str]:
    """The names of ``__all__`` too, whose classes are not imported yet."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import the class when it is used."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def run(
    job: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] | None = (),
    *,
    model: Any = None,
    data: Any = None,
    out: str | Path | None = None,
    continued: bool = False,
    callbacks: Sequence["Callback"] = (),
) -> "Result":
    """Run a job; under a launcher, on all ranks.

    The run directory keeps the objects that are passed, and the classes that are defined in the
    script or notebook itself: resume, export and load_model work from any process, and execute
    them.

    Args:
        job: a job file, the name of a packaged job ("quickstart"), the record of a run, or a
            mapping as in a file.
        overrides: settings over the job's: a mapping of keys, dotted or in each other, or a list of
            "key.path=value"; None: none.  A class or a function stands for its dotted path.
        model: takes the place of the job's ``model``: a ``torch.nn.Module``, whose present weights
            are the initial ones; or a class or function that makes one, which draws its weights
            from the job's seed, and may have arguments ``input_shape`` and ``outputs``; or a
            ``ModelConfig``.
        data: takes the place of the job's ``data``: ``hpcfl.Data``, or its first fields as a
            tuple ``(train, test, owners)``; or a ``DataConfig``.  The job's ``data.partition``
            divides the examples where they have no owners.
        out: the run directory; runs/NAME when absent ("job" is a mapping's name), followed by what
            the overrides and objects change.
        continued: resume if the directory holds a checkpoint of this job.
        callbacks: objects of classes derived from ``hpcfl.Callback``, called beside those that the
            job names.  They belong to this call: the run directory does not keep them.

    Returns:
        The run directory, the final model and the log.

    Raises:
        JobError: something is wrong with the job, its files, an object or the directory.
        DivergedError: a client's update was not finite.
        Stopped: a signal asked for a stop; a checkpoint was written.
    """
    from hpcfl.job.callbacks import check_callback_objects
    from hpcfl.runs.job_file.yaml_file import OVERRIDES
    from hpcfl.start.objects import load_job
    from hpcfl.start.start import start

    check_callback_objects("hpcfl.run(callbacks=...)", callbacks)
    out = Path(out) if out else None
    loaded, kept_files = load_job(job, overrides, out=out, model=model, data=data, origin=OVERRIDES)
    return start(loaded, out, continued=continued, kept_files=kept_files, callbacks=callbacks)


def resume(
    directory: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] | None = (),
    *,
    out: str | Path | None = None,
    round: int | None = None,
    verify: bool = True,
    callbacks: Sequence["Callback"] = (),
) -> "Result":
    """Resume a run from a checkpoint, on any number of ranks.

    Args:
        directory: the run directory.
        overrides: settings over the job's, as for ``run``, which change no past round; with ``out``
            also others, such as ``local.lr``: the copy is then a branch.
        out: copy the run there and resume the copy; the run in ``directory`` may be alive.
        round: of the checkpoint; None: the newest.  Later ones are deleted, once by the same
            arguments.
        verify: read all client states first; else each one when it is first used.
        callbacks: as for ``run``; those of an earlier call are not known any more.

    Raises:
        JobError: the directory holds no run, one that is alive, or not that round, or a setting
            would change past rounds; ``out`` exists.
        StoreError: the checkpoint or a store is damaged.
        DivergedError, Stopped: as for ``run``.
    """
    from hpcfl.job.callbacks import check_callback_objects
    from hpcfl.runs.job_file.yaml_file import OVERRIDES, override_texts
    from hpcfl.start.start import resume

    check_callback_objects("hpcfl.resume(callbacks=...)", callbacks)
    copy, texts = Path(out) if out else None, override_texts(overrides)
    return resume(
        Path(directory),
        texts,
        out=copy,
        round=round,
        verify=verify,
        callbacks=callbacks,
        origin=OVERRIDES,
    )


def check(
    job: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] | None = (),
    *,
    model: Any = None,
    data: Any = None,
    load: bool = False,
) -> "CheckedJob":
    """Check a job as ``hpcfl check`` does; nothing is trained.

    Args:
        job: as for ``run``.
        overrides: as for ``run``.
        model: as for ``run``.
        data: as for ``run``.
        load: also load the data, build the model and try one step, as ``hpcfl check --data``.

    Returns:
        The resolved job and, with ``load``, its sizes; ``print`` shows the summary.

    Raises:
        JobError: something is wrong with the job, its files or an object.
    """
    from hpcfl.start.objects import loaded_for_trial
    from hpcfl.tools.check import check_job

    with loaded_for_trial(job, overrides, model, data) as loaded:
        return check_job(loaded, data=load)


def plan_job(
    job: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] | None = (),
    *,
    model: Any = None,
    data: Any = None,
    ranks: int | None = None,
    measure: bool = False,
    sizes: Mapping[str, Any] | None = None,
) -> "JobPlan":
    """Predict what a job will need, as ``hpcfl plan`` does.

    Args:
        job: as for ``run``.
        overrides: as for ``run``.
        model: as for ``run``.
        data: as for ``run``.
        ranks: how many will run it; None: those that measure, or 1.
        measure: run a few rounds on the ranks that are there, for the time and the peak of
            memory; of a job with objects on one rank alone.
        sizes: of data that is not there, such as ``{"clients": 20, "train": 6000, "test": 1000,
            "classes": 5, "shape": (3, 32, 32)}``.

    Returns:
        Disk, memory, traffic, time and the command for Slurm; ``print`` shows them as tables.

    Raises:
        JobError: something is wrong with the job, its files or an object.
    """
    from hpcfl.start.objects import loaded_for_trial
    from hpcfl.tools.plan.data import make_sizes
    from hpcfl.tools.plan.show import make_plan

    with loaded_for_trial(job, overrides, model, data, alone=not measure) as loaded:
        found = None if sizes is None else make_sizes(sizes, "sizes")
        return make_plan(loaded, ranks, measure_rounds=measure, sizes=found)


def load_model(
    directory: str | Path,
    *,
    round: int | None = None,
    best: bool = False,
    client: int | None = None,
) -> "nn.Module":
    """The global model of a run, or a client's, as a torch module on the CPU in evaluation mode.

    Its inputs are what the data set's transform makes of stored examples; those of ``hpcfl.Data``
    are only cast to floats.  The run's data are read, for the shape of the inputs, so they must be
    where the job says.  The objects that the run keeps are executed: load only runs whose origin
    you trust.

    Args:
        directory: the run directory; the run may be alive.
        round: of a checkpoint that is kept; None: the newest.
        best: the model of the best evaluated round instead, where the job keeps it
            (``evaluate.best``).
        client: the number of a client, for its own model, where the algorithm makes such models.

    Raises:
        JobError: the directory holds no run or not that round, or keeps no best model; there is no
            such client, or the clients have no models of their own.
        StoreError: the checkpoint is damaged.
    """
    from hpcfl.start.saved_models import load_model

    return load_model(Path(directory), round=round, best=best, client=client)


def read_log(directory: str | Path) -> "DataFrame":
    """The log of a run as a pandas DataFrame: a row a round, NaN where a round has no such number.

    ``Result.log`` has the same without pandas.  The keys are those of log.jsonl.

    Raises:
        JobError: the directory holds no run, or pandas is not installed.
        StoreError: the log is damaged.
    """
    from hpcfl.tools.report.data_frame import read_log

    return read_log(Path(directory))


def read_runs(
    directories: str | Path | Sequence[str | Path], *, chosen: bool = False
) -> "DataFrame":
    """The runs in some directories as a DataFrame, a row a run; pandas must be installed.

    Args:
        directories: run directories, sweeps, or folders of them.
        chosen: keep the best setting of each algorithm and set-up alone, as ``report --chosen``.

    Returns:
        The columns ``run``, ``directory``, ``algorithm``, ``rounds``, ``rounds_done``, ``state``,
        ``diverged`` (0 or 1), the scores and costs of ``hpcfl report --format csv`` (fractions,
        bytes, seconds), ``examples``, ``local_steps``, ``ran_on``, and every key of the jobs, such
        as ``seed`` and ``local.lr``.

    Raises:
        JobError: there is no run in one of the directories, or pandas is not installed.
        StoreError: a file of a run is damaged.
    """
    from hpcfl.tools.report.data_frame import read_runs

    paths = [directories] if isinstance(directories, str | Path) else directories
    return read_runs([*map(Path, paths)], chosen=chosen)


def export(
    directory: str | Path,
    output: str | Path | None = None,
    *,
    state_dict: str | Path | None = None,
    round: int | None = None,
    clients: bool = False,
    best: bool = False,
    client: int | None = None,
) -> list[Path]:
    """Write a run's global model, and its client states, to files, as ``hpcfl export`` does.

    Args:
        directory: the run directory; the run may be alive.
        output: an .npz for ``x``, the flat model, and ``round``.
        state_dict: a .safetensors for the model's parameters and buffers by name.
        round: of a checkpoint that is kept; None: the newest.
        clients: add the client states to ``output``.
        best: the model of the best evaluated round instead.
        client: the number of a client, for its own model instead, as for ``load_model``.

    Returns:
        The files written.

    Raises:
        JobError: the directory holds no run or not that round, or a file cannot be written.
        StoreError: the checkpoint or a store is damaged.
    """
    from hpcfl.tools.exports.checkpoint import export

    npz, tensors = (Path(path) if path else None for path in (output, state_dict))
    return export(
        Path(directory),
        round=round,
        npz=npz,
        state_dict=tensors,
        clients=clients,
        best=best,
        client=client,
    ).paths


def report_runs(
    directories: str | Path | Sequence[str | Path],
    *,
    layout: str = "runs",
    chosen: bool = False,
    target_accuracies: float | Sequence[float] = (),
    plot: str | Path | None = None,
    y: str | None = None,
    x: str = "rounds",
) -> "RunsReport":
    """Compare runs, as ``hpcfl report`` does.

    Args:
        directories: run directories, sweeps, or folders of them.
        layout: "runs", "seeds" or "paper".
        chosen: only the best setting of each algorithm and set-up, as ``hpcfl report --chosen``.
        target_accuracies: adds the rounds to this test accuracy of 0 to 1, or to each of these.
        plot: a .png, .pdf or .svg to draw.
        y: the number to draw, by its key in the log; when absent, the first score that there is.
        x: "rounds", "bytes", "time" or "simulated".

    Returns:
        The runs and their table, whose rows are ``values``: ``pandas.DataFrame(report.values)``.
        ``print`` shows the table.

    Raises:
        JobError: there is no run in one of the directories, or nothing to draw.
        StoreError: a file of a run is damaged.
    """
    from hpcfl.tools.report.layouts import report_runs

    paths = [directories] if isinstance(directories, str | Path) else directories
    return report_runs(
        [*map(Path, paths)],
        layout=layout,
        chosen=chosen,
        target_accuracies=target_accuracies,
        plot=Path(plot) if plot else None,
        y=y,
        x=x,
    )
