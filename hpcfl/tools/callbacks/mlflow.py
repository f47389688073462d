"""Send rounds to MLflow."""

import os
from collections.abc import Sequence
from typing import Any

from hpcfl.engine.callbacks import RunStart
from hpcfl.runs.job_file.settings import Settings
from hpcfl.tools.callbacks.tracker import LoggedRound, Tracker

_METRICS, _PARAMS = 1000, 100  # of one call, at most: limits of MLflow
_LONG = 6000  # characters of a parameter, likewise


class Mlflow(Tracker):
    """MLflow: a server or data base by MLFLOW_TRACKING_URI, else files in the run directory."""

    name = "mlflow"

    def begin(self, run: RunStart, config: Settings, name: str, known: str | None) -> str:
        """Make the run with its parameters, or set it running again."""
        # Without it, MLflow 3 refuses files, which need neither a server nor locks.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param, RunTag

        store = os.environ.get("MLFLOW_TRACKING_URI") or (run.directory / "mlruns").as_uri()
        self._client: Any = MlflowClient(tracking_uri=store)
        params = {key: str(value)[:_LONG] for key, value in config.items()}
        tags = {"mlflow.source.git.commit": str(config["git"])} if config.get("git") else {}
        if known is None:
            made = self._client.create_run(self._experiment(), run_name=name)
            self._id = str(made.info.run_id)
        else:
            self._id = known
            found = self._client.get_run(known).data.params
            # A parameter cannot be changed: a tag of its name has the present value.
            tags |= {key: v for key, v in params.items() if found.get(key, v) != v}
            params = {key: v for key, v in params.items() if key not in found}
            self._client.update_run(known, status="RUNNING")
        self._client.log_batch(self._id, tags=[RunTag(*pair) for pair in tags.items()])
        made_of = [Param(*pair) for pair in params.items()]
        for first in range(0, len(made_of), _PARAMS):
            self._client.log_batch(self._id, params=made_of[first : first + _PARAMS])
        return self._id

    def deliver(self, rows: Sequence[LoggedRound]) -> None:
        """Send the rounds."""
        from mlflow.entities import Metric

        points = [
            Metric(key, value, row.time_ms, row.round)
            for row in rows
            for key, value in row.values.items()
        ]
        for first in range(0, len(points), _METRICS):
            self._client.log_batch(self._id, metrics=points[first : first + _METRICS])

    def finish(self, status: str) -> None:
        """Set the run's status; a stopped run is KILLED, until it is resumed."""
        words = {"finished": "FINISHED", "stopped": "KILLED"}
        self._client.set_terminated(self._id, words.get(status, "FAILED"))

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        def find() -> str | None:
            found = self._client.get_experiment_by_name(self.project)
            return found.experiment_id if found else None

        try:
            return find() or str(self._client.create_experiment(self.project))
        except MlflowException:  # another run of a sweep may have made it meanwhile
            if found := find():
                return found
            raise
