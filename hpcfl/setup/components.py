"""Build the objects of a checked job: data, clients, model, dry round, executor, stores."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hpcfl.algorithms.base import Algorithm, Message
from hpcfl.algorithms.facts import RandomInit
from hpcfl.cohort.assignment import Balance, in_groups
from hpcfl.cohort.participation import Participation
from hpcfl.cohort.sampling import PowerOfChoice
from hpcfl.comm.base import Comm
from hpcfl.comm.exact import ExactReduction
from hpcfl.comm.fast import FastReduction
from hpcfl.comm.reduction import Reduction
from hpcfl.data.base import Dataset
from hpcfl.data.partition import ExampleRows
from hpcfl.data.split import Split, split_examples, tests_of_clients
from hpcfl.engine.diagnostics import Observer
from hpcfl.engine.dry_round import FullGradient, RoundSchema, dry_round, nbytes, traffic
from hpcfl.engine.hook_rules import hook_advice
from hpcfl.engine.run import Choice, Run, RunHooks, Schedule, Training, WarmStartGroups
from hpcfl.engine.statistics import (
    WithStatistics,
    at_statistics,
    joined,
    personal_point,
    statistics_in,
)
from hpcfl.engine.timing import RoundTimer, SimulatedClock
from hpcfl.errors import HpcflError, JobError, as_job_error, defined, one_line
from hpcfl.evaluation.measure import Meter
from hpcfl.job.schema import (
    Job,
    LoadedJob,
    carried_statistics,
    check_full_blocks,
    resolve_algorithm,
)
from hpcfl.local.block import block_executor
from hpcfl.local.client_pool import ClientData, ClientPool, ClientTests
from hpcfl.local.client_states import ClientStates
from hpcfl.local.devices import Participants, Visits
from hpcfl.local.evaluation_set import EvaluationSet
from hpcfl.local.examples import ExampleSource
from hpcfl.local.executor import MAX_BLOCK_SIZE, Executor
from hpcfl.local.fine_tuning import FineTuning, Start
from hpcfl.local.gradient import Gradient
from hpcfl.local.lanes import lane_executor
from hpcfl.local.remote_states import RemoteClientStates
from hpcfl.local.sequential import Sequential
from hpcfl.models.flat_vector import buffers, frozen_note, layout_of
from hpcfl.models.statistics import RunningStatistics, statistics_of
from hpcfl.models.training_loss import training_loss
from hpcfl.optim import Descent
from hpcfl.runs.run_score import OwnModels, Trained, deciding_scores
from hpcfl.seeds import key
from hpcfl.setup.client_store import make_client_store
from hpcfl.setup.device import configure_torch
from hpcfl.setup.initial_model import draw_model, initial_model
from hpcfl.setup.load_data import load_data
from hpcfl.setup.model_function import ModelFunction, model_function
from hpcfl.signals import Signals
from hpcfl.store.base import ClientStore
from hpcfl.store.schema import StateSchema
from hpcfl.types import IntArray, Vector


@dataclass(frozen=True)
class Components:
    """The data, model and clients of a job: the same on every rank."""

    loaded: LoadedJob
    """The job, with its defaults resolved for the number of clients."""
    dataset: Dataset
    split: Split
    """Each client's training examples, and what is held out of them."""
    model: nn.Module
    x0: Vector
    missing_weights: tuple[str, ...]
    """The parameters that ``model.init`` did not provide."""
    schema: RoundSchema
    device: torch.device
    statistics: RunningStatistics | None = None
    """The model's running statistics, if rounds move any."""

    @property
    def job(self) -> Job:
        """The job, with its defaults resolved."""
        return self.loaded.job

    @property
    def rows(self) -> Sequence[ExampleRows]:
        """Each client's training examples."""
        return self.split.rows

    @property
    def buffers(self) -> dict[str, Tensor]:
        """What no round changes of the model, by name, on the device: themselves, not copies.

        Its buffers and frozen parameters; of running statistics those that it was made with.
        """
        kept = self.statistics
        return buffers(self.model) | ({} if kept is None else kept.pieces(kept.initial))

    @property
    def parameters_text(self) -> str:
        """The numbers of parameters, of frozen ones, and of running statistics: for the user."""
        text = f"{self.x0.numel()} parameters{frozen_note(self.model)}"
        if not isinstance(self.algorithm, WithStatistics):
            return text
        return (
            f"{text}, {len(self.algorithm.initial)} running statistics ({self.algorithm.carried})"
        )

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, with its defaults resolved, and with running statistics if there are."""
        return with_statistics(self.job, self.job.algorithm, self.initial_statistics)

    @property
    def initial_statistics(self) -> Vector | None:
        """[Q], the running statistics that the model was made with; None if rounds move none."""
        return None if self.statistics is None else self.statistics.initial

    @property
    def descent(self) -> Descent:
        """The optimiser of the local steps."""
        return self.job.local.descent(layout_of(self.model))

    def random_init(self, client: int) -> RandomInit:
        """The client's source of random initialisations: always the same one."""
        return lambda: draw_model(
            self.loaded, self.dataset, key(self.job.seed, "fresh", client=client)
        )[0].to(self.device)

    def first_state(self, client: int, *grad: Vector) -> Any:
        """The state of a client before its first round, on the device.

        Args:
            client: its number.
            grad: with a warm start, its full gradient at the initial model.
        """
        return self.algorithm.init_client(self.x0, self.random_init(client), *grad)

    @property
    def stored_state(self) -> StateSchema:
        """The shape of a client's state in its store."""
        return stored(self.job, self.schema)

    @cached_property
    def client_tests(self) -> ClientTests:
        """The examples that each client is scored on."""
        if self.split.held_out is not None:
            return ClientTests("holdout", self.split.held_out)
        own = tests_of_clients(self.job.data, self.dataset, self.split, self.job.seed)
        return ClientTests("train", self.rows) if own is None else ClientTests("test", own)

    @property
    def tested_clients(self) -> int:
        """The number of clients that have examples to be scored on."""
        return sum(len(own) > 0 for own in self.client_tests.rows)

    @property
    def own_models(self) -> OwnModels | None:
        """What is known of the clients' own models; None of a method that makes none.

        What no message or no upload has of x is not trained: FedPer's bytes, or local training's.
        """
        algorithm = self.algorithm
        if not algorithm.has_personal_models:
            return None
        bytes_, whole = traffic(algorithm, self.schema), nbytes(self.x0)
        if isinstance(algorithm, WithStatistics):
            whole += nbytes(algorithm.initial)
        trained: Trained = "trained" if bytes_.down >= whole else "partly trained"
        return OwnModels(self.client_tests.data, trained if min(bytes_) else "not trained")

    @property
    def counts_own_models(self) -> bool:
        """Whether the score of the run is that of the clients' own models."""
        return self.algorithm.has_personal_models and bool(self.job.evaluate.personal)

    @property
    def scores(self) -> Sequence[str]:
        """Those that the run may count by, of its examples and labels, the preferred one first."""
        personal, test, rows = self.counts_own_models, self.dataset.test, self.split.validation
        validated = rows is not None and (self.split.own_validation is not None or not personal)
        tested = self.tested_clients > 0 if personal else test is not None and len(test.labels) > 0
        return [
            key
            for key in deciding_scores(personal=personal)
            if (validated if "validation" in key else tested)
            and (self.dataset.classes or not key.endswith("accuracy"))
        ]

    @cached_property
    def clients(self) -> ClientPool:
        """The clients, over one copy of the data on the device."""
        return ClientPool(
            ClientData(self.dataset, self.rows, self.client_tests, self.split.own_validation),
            self.job.local,
            local_lr=self.job.local_lr,
            seed=self.job.seed,
            dtype=self.x0.dtype,
            device=self.device,
            full_batch=self.job.evaluate.batch_size,
            count_labels=self.dataset.classes if self.algorithm.needs_label_counts else None,
        )

    def changed(self, **changes: Any) -> "Components":
        """These components with another job or initial model, over the same copy of the data."""
        made = replace(self, **changes)
        vars(made)["clients"] = self.clients  # a new pool would copy the data to the device again
        return made

    @property
    def weights(self) -> NDArray[np.float64]:
        """[N], the weight of every client."""
        sizes = np.array(self.clients.examples, dtype=np.float64)
        return sizes if self.job.weights == "examples" else np.ones_like(sizes)

    @cached_property
    def examples_per_round(self) -> IntArray:
        """[N], the examples of a round of every client, once for each full gradient too."""
        sizes = np.array(self.clients.examples, dtype=np.int64)
        return self.clients.examples_per_round + self.schema.points * sizes

    @cached_property
    def participants(self) -> Participants:
        """Who takes part in a round, by cohorts and devices."""
        pool, job = self.clients, self.job
        sizes = np.array(pool.examples, dtype=np.int64)
        each, before = self.schema.gradients, self.schema.points * sizes
        bytes_ = traffic(self.algorithm, self.schema)
        visits = Visits(
            bytes_.down,
            bytes_.up,
            pool.steps_per_round,
            each * pool.examples_per_round + before,
            lambda client, steps: each * pool.examples_in(client, steps) + int(before[client]),
        )
        return Participants(job.cohort, job.devices, len(pool), job.seed, visits, self.weights)

    @cached_property
    def participation(self) -> Callable[[int], Participation]:
        """From a round to who takes part in it.

        Two rounds are cached: states of the next one are prefetched during this one.
        """
        return lru_cache(2)(self.participants)

    def possible(self, round: int) -> IntArray:
        """Those who may take part in a round; where losses choose, its candidates."""
        if isinstance(self.job.cohort, PowerOfChoice):
            return self.participants.candidates(round)
        members: IntArray = self.participation(round).members
        return members

    @property
    def places(self) -> int:
        """Of those who may take part in a round, how many do at most."""
        cohort = self.job.cohort
        return cohort.size if isinstance(cohort, PowerOfChoice) else len(self.rows)

    def left_out(self, participation: Participation) -> tuple[IntArray, IntArray]:
        """[K], local steps, and examples in them, that clients leave out to meet a deadline.

        Of each client that takes part.
        """
        members, steps, _ = participation
        less = np.zeros((2, len(members)), dtype=np.int64)
        for client, taken in steps.items():
            less[:, np.searchsorted(members, client)] = (
                self.clients.steps_per_round[client] - taken,
                self.clients.examples_in(client, None) - self.clients.examples_in(client, taken),
            )
        return less[0], less[1]

    def work_in(self, participation: Participation) -> IntArray:
        """[K], the ``examples_per_round`` of each client that takes part."""
        members, work = participation.members, self.examples_per_round
        less: IntArray = work[members] - self.left_out(participation)[1]
        return less

    def own_model(self, store: ClientStore, client: int, x: Vector) -> Vector | None:
        """The last local model of a client, on the device; None before its first round.

        Its running statistics are the client's own, or those of the evaluated model ``x``.
        """
        state, name = store.load(client), self.schema.local_model_field
        if state is None or name is None:
            return None
        model, own = getattr(state, name), statistics_in(state)
        statistics = x[len(self.x0) :] if own is None else own
        return at_statistics(*(part.to(self.device, x.dtype) for part in (model, statistics)))

    def client_states(self, store: ClientStore) -> ClientStates:
        """The states of this rank's clients, between their store and the device."""
        schema = self.schema.client_state
        return ClientStates(store, schema, self.stored_state, self.first_state, self.device)

    def personal_models(
        self,
        store: ClientStore,
        tuning: Executor | None,
        clients: Sequence[int],
        x: Vector,
        round: int,
    ) -> Iterator[Vector]:
        """The clients' own models as ``evaluate.personal`` scores them, on the device, in turn.

        Args:
            store: of the clients' states.
            tuning: of ``fine_tuning``.
            clients: their numbers; one that never took part has its first state.
            x: [P], or [P + Q] with running statistics, the evaluated model.
            round: rounds completed.
        """
        states = self.client_states(store)
        size = self.concurrent_clients
        for group in (clients[k : k + size] for k in range(0, len(clients), size)):
            own = (states.to_device(client, states.read(client)) for client in group)
            made = [personal_point(self.algorithm, x, state) for state in own]
            models = [x if model is None else model for model in made]
            if tuning is not None:
                # The batches and the rate of the last round: a cosine ends at a rate of 0 after it.
                last, starts = max(round - 1, 0), [self._start(model) for model in models]
                tasks = [self.clients.task_apart(i, last, self.tuning_steps) for i in group]
                message = Message(x[: len(self.x0)])
                results = tuning.train(message, tasks, starts, local_models=True)
                self.clients.pop_elapsed_s()  # no time of a round
                models = [
                    at_statistics(result.local_model, statistics_in(result.state))
                    for result in results
                ]
            yield from models

    def _start(self, point: Vector) -> Any:
        """The state from which a client is tuned: a model, and its running statistics."""
        start, own = Start(point[: len(self.x0)]), point[len(self.x0) :]
        return start if self.statistics is None else joined(start, own)

    @property
    def tuning_steps(self) -> int:
        """``evaluate.personal.steps``; 0 where there are none."""
        asked = self.job.evaluate.personal
        return 0 if asked is None or isinstance(asked, bool) else asked.steps

    def fine_tuning(self, gradient: Gradient) -> Executor | None:
        """The executor of the job's kind that trains before personal scores; None without steps."""
        if not self.tuning_steps:
            return None
        algorithm: Algorithm = FineTuning().with_facts(self.algorithm.facts)
        if self.statistics is not None:
            algorithm = WithStatistics(algorithm, self.statistics.initial, "local")
        one = Sequential(algorithm, gradient, self.descent)
        return self._executor(one, shared=[False] * (self.statistics is not None))

    def tests(self, batch_size: int | None = None) -> EvaluationSet:
        """The test set, in batches of the job's size or another one."""
        size = 0 if self.dataset.test is None else len(self.dataset.test.labels)
        return self._evaluation_set(size, None, lambda: self.clients.test_source, batch_size)

    def validation(self) -> EvaluationSet:
        """The validation set, empty where the job keeps none."""
        rows = self.split.validation
        size = 0 if rows is None else len(rows)
        return self._evaluation_set(size, rows, lambda: self.clients.train_source)

    def _evaluation_set(
        self,
        size: int,
        rows: ExampleRows | None,
        source: Callable[[], ExampleSource],
        batch_size: int | None = None,
    ) -> EvaluationSet:
        return EvaluationSet(
            size,
            rows,
            source,
            self.dataset.transform,
            batch_size=batch_size or self.job.evaluate.batch_size,
            dtype=self.x0.dtype,
        )

    def gradient(self) -> Gradient:
        """The gradient of the model's loss."""
        return Gradient(
            self.model,
            training_loss(self.job.loss, self.dataset.loss),
            bf16=self.job.precision == "bf16",
            clip=self.job.local.clip,
            statistics=self.statistics,
        )

    def function(self) -> ModelFunction:
        """What the model computes near its initial parameters, by its initial statistics.

        Raises:
            JobError: it cannot be evaluated.
        """
        if self.statistics is not None:
            self.statistics.load(self.statistics.initial)
        return model_function(self.loaded, self.model, self.x0, self.dataset)

    def executor(self, gradient: Gradient) -> Executor:
        """The object that trains clients: one after the other, in blocks or in lanes.

        Raises:
            JobError: the model cannot be trained for many clients at once, as the job wants; lanes
            or Triton without a GPU; Triton is not installed; or the executor is ``auto``, which is
            resolved when a run starts.
        """
        shared = [field.shared for field in self.schema.client_state.fields]
        return self._executor(Sequential(self.algorithm, gradient, self.descent), shared=shared)

    def _executor(self, one: Sequential, *, shared: Sequence[bool]) -> Executor:
        job = self.job
        if job.executor == "sequential":
            return one
        if job.executor == "auto":
            raise JobError(
                "executor: auto is chosen when a run begins; say sequential, block, triton or lanes"
            )
        if job.executor in ("lanes", "triton") and self.device.type != "cuda":
            raise JobError(
                f"executor: found {job.executor} on a CPU, and it needs a GPU; say "
                "executor=sequential, or executor=block"
            )
        if job.executor == "triton" and find_spec("triton") is None:
            raise JobError(
                "executor: found triton, but Triton is not installed; a CUDA build of torch for "
                "Linux brings it; or say executor=block"
            )
        if job.executor == "lanes" and self.concurrent_clients > MAX_BLOCK_SIZE:
            raise JobError(
                f"block_size: found {self.concurrent_clients}, and {MAX_BLOCK_SIZE} lanes are "
                "the most, as torch has no more streams; set a smaller one"
            )
        check_full_blocks(job, len(self.rows))
        try:
            if job.executor == "lanes":
                return lane_executor(
                    one, self.clients, self.x0, shared=shared, size=self.concurrent_clients
                )
            return block_executor(
                one,
                self.clients,
                self.x0,
                shared=shared,
                size=self.concurrent_clients,
                triton=job.executor == "triton",
            )
        except HpcflError:
            raise
        except Exception as e:
            raise self.block_error(e) from e

    def block_error(self, error: Exception) -> JobError:
        """The error to raise where the model cannot be trained for many clients at once."""
        names = (self.loaded.names[section] for section in ("algorithm", "model"))
        return JobError(
            f"executor: {self.job.executor} cannot train {' with '.join(names)} for many clients "
            f"at once ({one_line(str(error))}); say executor=sequential"
        )

    @property
    def concurrent_clients(self) -> int:
        """Clients that train at once, or that may, where the executor is still to be chosen."""
        job = self.job
        return (
            1
            if job.executor == "sequential"
            else job.block_size or min(MAX_BLOCK_SIZE, self.cohort)
        )

    @property
    def cohort(self) -> int:
        """Clients in a round, as many as can be expected."""
        clients = len(self.rows)
        return max(1, round(self.job.cohort.participation(clients) * clients))

    @property
    def warm_start_groups(self) -> list[IntArray]:
        """All clients in groups of a cohort's size, where the algorithm has a warm start."""
        return in_groups(len(self.rows), self.cohort) if self.algorithm.warm_start else []

    def uploads(self, comm: Comm) -> Reduction:
        """The mean of the uploads."""
        return self._reduction(
            comm,
            self.schema.reduced,
            self.algorithm.unweighted,
            lambda upload: self.algorithm.up_bytes(self.schema.split_loss(upload)[0]),
        )

    def full_gradients(self, comm: Comm) -> Reduction:
        """The plain mean of full gradients."""
        return self._reduction(comm, FullGradient(self.x0.to("meta")), frozenset({"grad"}))

    def _reduction(
        self,
        comm: Comm,
        template: Any,
        plain: frozenset[str],
        bytes_of: Callable[[Any], int] | None = None,
    ) -> Reduction:
        kind = ExactReduction if self.job.reduction == "exact" else FastReduction
        return kind(comm, template, plain, self.x0.dtype, self.device, bytes_of)

    def store(self, root: Path, rank: int, session_id: str, clients: Sequence[int]) -> ClientStore:
        """A new store for the states of ``clients``."""
        job, schema = self.job, self.stored_state
        return make_client_store(job.store, schema, root, rank, session_id, clients, self.device)


def with_statistics(job: Job, algorithm: Algorithm, initial: Vector | None) -> Algorithm:
    """The algorithm, with running statistics [Q] as the job has them, if rounds move any."""
    carried = carried_statistics(job)
    if initial is None or carried is None:
        return algorithm
    return WithStatistics(algorithm, initial, carried)


def stored(job: Job, schema: RoundSchema) -> StateSchema:
    """The shape of a client's state in its store."""
    dtype = job.store.dtype
    return (
        schema.client_state
        if dtype is None
        else schema.client_state.narrowed(getattr(torch, dtype))
    )


def build_components(
    loaded: LoadedJob,
    device: torch.device,
    *,
    resumed: bool = False,
    dataset: Dataset | None = None,
) -> Components:
    """Load and partition the data, build the model, and do the dry round.

    ``hpcfl.checks.preflight`` checks that they fit together.

    Args:
        loaded: the checked job.
        device: this rank's.
        resumed: the initial model is in the run directory: the file of ``model.init`` is not read.
        dataset: instead of what the job would load.

    Raises:
        JobError, DataError: something in the job does not fit.
    """
    job = loaded.job
    configure_torch(job, device)
    if dataset is None:
        dataset = load_data(loaded)
    with as_job_error(
        f"data.kind: {loaded.names['data']}",
        "its examples cannot be dealt to clients",
        defined(type(job.data).load),
    ):
        split = split_examples(job.data, dataset, job.seed)
    dataset = replace(dataset, notes=(*dataset.notes, *split.notes))
    if split.clients is not None and dataset.personal is not None:
        # A client keeps its own transform, whatever its number among those that train.
        personal, numbers = dataset.personal, split.clients.tolist()
        dataset = replace(dataset, personal=lambda client: personal(numbers[client]))
    x0, model, skipped = initial_model(loaded, dataset, resumed)
    layout, moved = layout_of(model), bool(statistics_of(model))
    carried = carried_statistics(job) if moved else None
    loaded = resolve_algorithm(loaded, len(split.rows), dataset.classes, layout, carried)
    algorithm, name = loaded.job.algorithm, loaded.names["algorithm"]
    model, x0 = model.to(device), x0.to(device)
    statistics = RunningStatistics(model) if moved else None
    carrying = with_statistics(
        loaded.job, algorithm, None if statistics is None else statistics.initial
    )
    with as_job_error(
        f"algorithm.name: {name}", "its dry round failed", "", algorithm, advice=hook_advice
    ):
        descent = loaded.job.local.descent(layout)
        schema = dry_round(algorithm, x0.numel(), x0.dtype, descent)
        if carrying is not algorithm:
            schema = dry_round(carrying, x0.numel(), x0.dtype, descent)
    made = Components(loaded, dataset, split, model, x0, skipped, schema, device, statistics)
    return _with_scores(made)


def _with_scores(components: Components) -> Components:
    """The same, where the job says whether it scores the clients' own models, and when it stops.

    By default these are scored where clients have examples that they do not train on, and a run
    stops by the score that it counts by.
    """
    loaded, validation = components.loaded, components.split.own_validation
    if loaded.job.evaluate.personal is None:
        asked = (
            components.algorithm.has_personal_models
            and (validation is not None or components.client_tests.data != "train")
            and components.tested_clients > 0
        )
        loaded = loaded.changed("evaluate", personal=asked)
    if loaded.job.stop is not None and loaded.job.stop.metric is None:
        found = next(iter(replace(components, loaded=loaded).scores), None)
        loaded = loaded.changed("stop", metric=found)
    return replace(components, loaded=loaded)


def build_run(
    components: Components,
    comm: Comm,
    owner: IntArray,
    store: ClientStore,
    gradient: Gradient,
    hooks: RunHooks,
    signals: Signals,
) -> Run:
    """Build the engine's ``Run`` on one rank.

    Args:
        components: of the job.
        comm: the group of ranks.
        owner: [N], the rank that keeps each client's state.
        store: of this rank's client states.
        gradient: of the model's loss.
        hooks: evaluation, log and checkpoints.
        signals: the signals that this process received.
    """
    c, job = components, components.job
    executor = c.executor(gradient)
    full_gradients = c.full_gradients(comm)
    steal, participation = job.balance == "steal", c.participation
    balance = Balance(
        lambda t: participation(t).members,
        job.rounds,
        owner,
        (lambda t: c.work_in(participation(t))) if steal else None,
        comm.rank,
        comm.size,
    )
    groups, sizes = c.warm_start_groups, np.array(c.clients.examples, dtype=np.int64)
    group_balance = Balance(
        groups.__getitem__,
        len(groups),
        owner,
        (lambda group: sizes[groups[group]]) if steal else None,
        comm.rank,
        comm.size,
    )

    states = c.client_states(store)
    sends_states = steal and bool(c.stored_state.fields)
    return Run(
        algorithm=c.algorithm,
        schema=c.schema,
        x0=c.x0,
        warm_start_groups=WarmStartGroups(
            [len(group) for group in groups], group_balance.assignment, c.first_state
        ),
        schedule=Schedule(
            rounds=job.rounds,
            participation=participation,
            assignment=balance.assignment,
            weights=c.participants.weights,
            local_lr=job.local_lr,
            evaluation_due=partial(job.evaluate.due, rounds=job.rounds),
            checkpoint_due=partial(job.checkpoint.due, rounds=job.rounds),
            checkpoint_minutes=job.checkpoint.minutes,
        ),
        choice=None
        if not isinstance(job.cohort, PowerOfChoice)
        else Choice(
            candidates=c.participants.candidates,
            owned=owner == comm.rank,
            meter=Meter(gradient, c.dataset.loss, c.dataset.classes),
            choose=c.participants.choose,
            assignment=lambda t, of: balance.of(t, of.members, c.work_in(of) if steal else None),
        ),
        training=Training(
            clients=c.clients,
            executor=executor,
            states=RemoteClientStates(states, c.stored_state, comm, c.device)
            if sends_states
            else states,
        ),
        comm=comm,
        uploads=c.uploads(comm),
        full_gradients=full_gradients,
        observer=Observer(job.diagnostics, executor, full_gradients, comm),
        hooks=hooks,
        signals=signals,
        timer=RoundTimer(comm.rank, comm.size, c.device),
        clock=None if job.devices is None else SimulatedClock(),
    )
