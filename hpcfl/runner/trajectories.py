"""Run a job of two parameters in this process, and record every local model."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfl.comm.solo import Solo
from hpcfl.data.sources.quadratics import Quadratics
from hpcfl.engine.trajectories import Trajectories, TrajectoryRecorder
from hpcfl.errors import JobError
from hpcfl.job.schema import LoadedJob
from hpcfl.runner.components import build_components, build_run
from hpcfl.runner.preflight import try_classes
from hpcfl.signals import Signals

DIM = 2


class QuadraticTrajectories(NamedTuple):
    """The recorded models of a run on quadratics in the plane, and their losses."""

    trajectories: Trajectories
    curvature: NDArray[np.float64]
    """[N, 2]: h_i of the loss 1/2 sum(h_i w^2) - b_i . w of client i."""
    linear: NDArray[np.float64]
    """[N, 2]: b_i."""


def run_quadratics(loaded: LoadedJob) -> QuadraticTrajectories:
    """Run a job on the quadratics in the plane, on the CPU; nothing is written.

    Args:
        loaded: the checked job.

    Raises:
        JobError: its data are other than quadratics in two dimensions, or something does not fit.
        DivergedError: a model was not finite.
    """
    data = loaded.job.data
    if not isinstance(data, Quadratics) or data.dim != DIM:
        found = f"dim {data.dim}" if isinstance(data, Quadratics) else "other data"
        raise JobError(
            f"{loaded.name}: found {found}, expected quadratics in the plane: data.kind quadratics "
            "with data.dim=2"
        )
    job = replace(loaded.job, executor="sequential", block_size=None)
    components = build_components(replace(loaded, job=job), torch.device("cpu"))
    try_classes(components)
    clients = len(components.rows)
    gradient = components.gradient()
    with (
        TemporaryDirectory(prefix="hpcfl-") as folder,
        closing(components.store(Path(folder), 0, "trajectories", range(clients))) as store,
    ):
        owner = np.zeros(clients, dtype=np.int64)
        # Signals are not latched: they end this command as they end any other without a run.
        recorder = TrajectoryRecorder()
        run = build_run(components, Solo(), owner, store, gradient, recorder, Signals())
        trajectories = recorder.run(run, gradient, job.local.sgd)
    inputs = components.dataset.train.inputs
    assert isinstance(inputs, torch.Tensor)  # noqa: S101  (the data source's)
    # A client with several examples minimises the mean of their losses.
    functions = np.stack([inputs[rows].double().mean(0).numpy() for rows in components.rows])
    return QuadraticTrajectories(trajectories, functions[:, 0], functions[:, 1])
