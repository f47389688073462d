"""Plays a job by the real engine with nothing written: every round's server, states, gradients.

An identity needs many small runs; ``tests.algorithms.play`` leaves all of theirs on disk, which
takes several times as long.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from hpcfl.algorithms.base import Algorithm
from hpcfl.clients.assignment import assign_owners
from hpcfl.comm.solo import Solo
from hpcfl.engine.loop import run_rounds
from hpcfl.engine.run import CheckpointState
from hpcfl.io.signals import Signals
from hpcfl.job.load import load
from hpcfl.local.gradient import Gradient
from hpcfl.models.losses import LOSSES
from hpcfl.start.build_run import build_run
from hpcfl.start.components.build import build_components
from hpcfl.start.components.components import Components
from hpcfl.store.base import ClientStore
from hpcfl.types import Batch, Record, Vector
from tests.algorithms.play import Array


class Trace(NamedTuple):
    """What a job went through."""

    servers: list[Any]
    """Before and after every round."""
    states: list[list[Any]]
    """Of every client, None where it has none, after every round."""
    gradients: list[list[Array]]
    """Of every round, each that a local step took, client after client in ascending order."""
    records: list[Record]
    """Of every round, as the log gets it."""
    algorithm: Algorithm
    """As the run settled it."""

    @property
    def xs(self) -> Array:
        """[rounds + 1, P]"""
        return np.stack([server.x.numpy() for server in self.servers])


class _Heard(Gradient):
    """Remembers what it answers."""

    def __init__(self, parts: Components) -> None:
        loss, clip = LOSSES[parts.population.dataset.loss], parts.job.local.clip
        statistics, count = parts.model.statistics, parts.job.local.accumulate
        super().__init__(parts.model.module, loss, clip=clip, statistics=statistics, parts=count)
        self.answers: list[Array] = []

    def stochastic(self, point: Vector, batch: Batch, seed: int) -> tuple[torch.Tensor, Vector]:
        value, grad = super().stochastic(point, batch, seed)
        self.answers.append(grad.numpy())
        return value, grad


class _Hooks:
    """Takes down everything after every round."""

    def __init__(self, trace: Trace, gradient: _Heard, store: ClientStore, population: int) -> None:
        self._trace, self._gradient = trace, gradient
        self._store, self._clients = store, range(population)

    def begin_round(self, round: int) -> None:
        pass

    def evaluate(self, round: int, x: Vector) -> Mapping[str, float]:
        return {}

    def record(self, record: Record, busy: Sequence[float], x: Vector) -> None:
        self._trace.records.append(record)

    def ends(self, round: int) -> bool:
        return False

    def begin_checkpoint(self, round: int, server: Any) -> None:
        self._trace.servers.append(server)
        self._trace.states.append([self._store.load(i) for i in self._clients])
        self._trace.gradients.append(self._gradient.answers)
        self._gradient.answers = []

    checkpoint_state = CheckpointState(writing=False)

    def commit_checkpoint(self, round: int) -> None:
        pass


def trace(job: Mapping[str, Any]) -> Trace:
    """Play the job, or remember how it went."""
    return _played(json.dumps(job, sort_keys=True))


@cache
def _played(job: str) -> Trace:
    tree = {**json.loads(job), "checkpoint": {"every": 1}}
    parts = build_components(load(tree), torch.device("cpu"))
    gradient, sizes = _Heard(parts), list(map(len, parts.population.rows))
    server = parts.training.algorithm.init_server(parts.model.x0)
    found = Trace([server], [], [], [], parts.training.algorithm)
    with (
        TemporaryDirectory() as folder,
        closing(parts.store(Path(folder), 0, "trace", range(len(sizes)))) as store,
    ):
        hooks = _Hooks(found, gradient, store, len(sizes))
        run = build_run(parts, Solo(), assign_owners(sizes, 1), store, gradient, hooks, Signals())
        run_rounds(run, server, 0)
    return found
