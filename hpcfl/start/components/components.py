"""The components of a job: its clients, its model, and how it trains them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hpcfl.algorithms.facts import RandomInit
from hpcfl.clients.client_states import ClientStates
from hpcfl.job.schema import Job, LoadedJob
from hpcfl.local.gradient import Gradient
from hpcfl.models.training_loss import training_loss
from hpcfl.seeds import key
from hpcfl.start.components.client_store import make_client_store
from hpcfl.start.components.initial_model import draw_model
from hpcfl.start.components.model import Model
from hpcfl.start.components.model_function import ModelFunction, model_function
from hpcfl.start.components.population import Population
from hpcfl.start.components.training import Training
from hpcfl.store.base import ClientStore
from hpcfl.types import Vector


@dataclass(frozen=True)
class Components:
    """What a job is built into, the same on every rank; made by ``build_components``.

    What differs by rank (its store, the group of ranks) is in a ``RankSession``.
    """

    loaded: LoadedJob
    """The job, with its defaults resolved for the number of clients."""
    population: Population
    model: Model
    training: Training

    @property
    def job(self) -> Job:
        """The job, with its defaults resolved."""
        return self.loaded.job

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    def with_job(self, loaded: LoadedJob) -> "Components":
        """These components with another executor or local optimiser in their job."""
        descent = loaded.job.local.descent(self.model.layout)
        return replace(self, loaded=loaded, training=replace(self.training, descent=descent))

    def with_initial(self, x0: Vector) -> "Components":
        """These components with other initial parameters [P], on the device."""
        return replace(self, model=replace(self.model, x0=x0))

    def for_rounds(self) -> "Components":
        """These components without the values of x0, if no round needs them: their memory is freed.

        Client states and a warm start begin with x0, and executors of many clients are tried there.
        """
        training = self.training
        states = bool(training.schema.client_state.fields) or training.algorithm.warm_start
        if states or self.job.executor != "sequential":
            return self
        return self.with_initial(self.model.x0.to("meta"))

    def random_init(self, client: int) -> RandomInit:
        """The client's source of random initialisations: always the same one."""
        return lambda: draw_model(
            self.loaded, self.population.dataset, key(self.job.seed, "fresh", client=client)
        )[0].to(self.device)

    def first_state(self, client: int, *grad: Vector) -> Any:
        """The state of a client before its first round, on the device.

        Args:
            client: its number.
            grad: with a warm start, its full gradient at the initial model.
        """
        algorithm = self.training.algorithm
        return algorithm.init_client(self.model.x0, self.random_init(client), *grad)

    def store(self, root: Path, rank: int, session_id: str, clients: Sequence[int]) -> ClientStore:
        """A new store for the states of ``clients``, see ``make_client_store``."""
        config, schema = self.job.store, self.training.stored_state
        return make_client_store(config, schema, root, rank, session_id, clients, self.device)

    def client_states(self, store: ClientStore) -> ClientStates:
        """The states of a rank's clients, between their store and the device."""
        schema, stored = self.training.schema.client_state, self.training.stored_state
        return ClientStates(store, schema, stored, self.first_state, self.device)

    def gradient(self) -> Gradient:
        """The gradient of the model's loss."""
        dataset = self.population.dataset
        return Gradient(
            self.model.module,
            training_loss(self.job.loss, dataset.loss, dataset.padding),
            bf16=self.job.precision == "bf16",
            clip=self.job.local.clip,
            statistics=self.model.statistics,
            parts=self.job.local.accumulate,
        )

    def function(self) -> ModelFunction:
        """What the model computes near its initial parameters, by its initial statistics.

        Raises:
            JobError: it cannot be evaluated.
        """
        model = self.model
        if model.statistics is not None:
            model.statistics.load(model.statistics.initial)
        return model_function(self.loaded, model.module, model.x0, self.population.dataset)
