"""Hand the rounds of a run to wandb, MLflow or trackio; rank 0 alone does.

All three know a round by its number, and all keep what they were given once: wandb refuses a number
that is not above the last, MLflow and trackio would show two points.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Protocol, TextIO

from hpcfl.job.schema import TrackerConfig, TrackerName
from hpcfl.job.settings import Settings

MLFLOW_STORE = "MLFLOW_TRACKING_URI"
WANDB_MODE = "WANDB_MODE"
_METRICS = 1000  # of one call, at most; a limit of MLflow
_PARAMS = 100  # likewise
_LONG = 6000  # characters of a parameter, likewise


class Row(NamedTuple):
    """The numbers of one round."""

    round: int
    time_ms: int
    """When they were logged, since 1970."""
    values: Mapping[str, float]
    """By the names of their curves."""


class Tracker(Protocol):
    """The run, as a tracker shows it.

    Methods raise what the tracker's package raises.
    """

    def start(self, config: Settings, name: str, known: str | None) -> str:
        """Begin a tracked run, or continue one.

        Args:
            config: the resolved job, the run directory, and versions.
            name: of the run.
            known: the id of the tracked run to continue; None: begin one.

        Returns:
            The id of the tracked run.
        """
        ...

    def scores(self, rows: Sequence[Row]) -> None:
        """Send rounds, in order, each of them once."""
        ...

    def end(self, status: str) -> None:
        """Close the run: it is "finished", "stopped", "diverged" or "failed"."""
        ...


class Wandb:
    """Weights & Biases; without WANDB_MODE nothing is sent over the network."""

    def __init__(self, project: str, root: Path) -> None:
        self._project, self._folder = project, os.environ.get("WANDB_DIR") or str(root)

    def start(self, config: Settings, name: str, known: str | None) -> str:
        """Start wandb's own process, which takes seconds."""
        import wandb

        self._run = wandb.init(
            project=self._project,
            name=name,
            id=known or token_hex(8),
            resume="allow",
            config=dict(config),
            allow_val_change=True,
            dir=self._folder,
            mode=os.environ.get(WANDB_MODE) or "offline",
            # Output is the run's own affair, and so is the code: the commit is in the config.
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )
        return str(self._run.id)

    def scores(self, rows: Sequence[Row]) -> None:
        """Hand the rounds to wandb's process, with the round as the step."""
        for row in rows:
            self._run.log(dict(row.values), step=row.round)

    def end(self, status: str) -> None:
        """Wait until wandb's process has written, or sent, all."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


class Mlflow:
    """MLflow: a server or data base by MLFLOW_TRACKING_URI, else files in the run directory."""

    def __init__(self, project: str, root: Path) -> None:
        self._project, self._store = project, mlflow_store(root)

    def start(self, config: Settings, name: str, known: str | None) -> str:
        """Make the run with its parameters, or set it running again."""
        # Without it, MLflow 3 refuses files, which need neither a server nor locks.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param, RunTag

        self._client = MlflowClient(tracking_uri=self._store)
        params = {key: str(value)[:_LONG] for key, value in config.items()}
        if known is None:
            made = self._client.create_run(self._experiment(), run_name=name)
            self._id = str(made.info.run_id)
            changed: dict[str, str] = {}
        else:
            self._id = known
            found = self._client.get_run(known).data.params
            # A parameter cannot be changed: a tag of its name has the present value.
            changed = {k: v for k, v in params.items() if found.get(k, v) != v}
            params = {k: v for k, v in params.items() if k not in found}
            self._client.update_run(known, status="RUNNING")
        tags = [RunTag(key, value) for key, value in changed.items()]
        if config.get("git"):
            tags.append(RunTag("mlflow.source.git.commit", str(config["git"])))
        self._client.log_batch(self._id, tags=tags)
        left = iter(params.items())
        while part := list(islice(left, _PARAMS)):
            self._client.log_batch(self._id, params=[Param(*pair) for pair in part])
        return self._id

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        def find() -> str | None:
            found = self._client.get_experiment_by_name(self._project)
            return found.experiment_id if found else None

        try:
            return find() or str(self._client.create_experiment(self._project))
        except MlflowException:  # another run of a sweep may have made it meanwhile
            if found := find():
                return found
            raise

    def scores(self, rows: Sequence[Row]) -> None:
        """Send the rounds in calls of 1000 numbers, MLflow's limit."""
        from mlflow.entities import Metric

        left = iter(
            [
                Metric(k, value, row.time_ms, row.round)
                for row in rows
                for k, value in row.values.items()
            ]
        )
        while part := list(islice(left, _METRICS)):
            self._client.log_batch(self._id, metrics=part)

    def end(self, status: str) -> None:
        """Set the run's status; a stopped run is KILLED, until it is resumed."""
        words = {"finished": "FINISHED", "stopped": "KILLED"}
        self._client.set_terminated(self._id, words.get(status, "FAILED"))


class Trackio:
    """trackio, in its own folder: TRACKIO_DIR, or ~/.cache/huggingface/trackio."""

    def __init__(self, project: str, root: Path) -> None:
        self._project = project

    def start(self, config: Settings, name: str, known: str | None) -> str:
        """Begin the thread of trackio that writes."""
        with _without_output():
            import trackio

            # It knows a run by its name, and of several of one name continues the newest.
            name = known or f"{name}-{token_hex(4)}"
            self._run = trackio.init(
                project=self._project,
                name=name,
                config=dict(config),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return name

    def scores(self, rows: Sequence[Row]) -> None:
        """Hand the rounds to trackio's thread."""
        for row in rows:
            self._run.log(dict(row.values), step=row.round)

    def end(self, status: str) -> None:
        """Wait until trackio's thread has written all."""
        with _without_output():
            self._run.finish()


_CLASSES: Mapping[TrackerName, type[Wandb] | type[Mlflow] | type[Trackio]] = {
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def make_tracker(config: TrackerConfig, root: Path) -> Tracker:
    """The tracker that a job names; nothing is imported, sent or written yet."""
    return _CLASSES[config.name](config.project, root)


def tracked_by(config: TrackerConfig, root: Path) -> str:
    """Which tracker gets the rounds, and where they go: "wandb (offline)"."""
    match config.name:
        case "wandb":
            return f"wandb ({os.environ.get(WANDB_MODE) or 'offline'})"
        case "mlflow":
            return f"mlflow ({mlflow_store(root)})"
        case _:
            return config.name


def mlflow_store(root: Path) -> str:
    """The address of MLflow's store for a run."""
    return os.environ.get(MLFLOW_STORE) or (root.absolute() / "mlruns").as_uri()


class _OtherThreads:
    """A stream that drops what the present thread writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._dropped = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._dropped else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _without_output() -> Iterator[None]:
    """Drop what this thread prints in the block, which standard output is not meant for."""
    with redirect_stdout(_OtherThreads(sys.stdout)):
        yield
