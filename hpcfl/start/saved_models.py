"""Read the models and the client states in a run's checkpoints."""

from collections.abc import Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hpcfl.algorithms.base import Algorithm
from hpcfl.algorithms.layout import stand_in
from hpcfl.algorithms.optim import Own
from hpcfl.checkpoint import initial
from hpcfl.checkpoint.best import BestModel
from hpcfl.checkpoint.buffers import read as read_buffers
from hpcfl.checkpoint.buffers import stored_names
from hpcfl.checkpoint.format import read_checkpoint
from hpcfl.data.split import split_examples
from hpcfl.engine.carried import evaluated_point, personal_point
from hpcfl.engine.dry_round import dry_round
from hpcfl.errors import JobError, StoreError
from hpcfl.io.files import readable
from hpcfl.job.resolve import carried_statistics, facts_of
from hpcfl.models.flat_vector import buffers, layout_of
from hpcfl.models.flat_vector import load as load_vector
from hpcfl.models.statistics import (
    COUNTER,
    initial_statistics,
    load_statistics,
    put_in_training,
    statistics_of,
)
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import (
    BEST,
    FUNCTION,
    INITIAL,
    Checkpoint,
    read_files,
    read_newest,
    read_run_files,
)
from hpcfl.seeds import key
from hpcfl.start.components.initial_model import build_model, draw_model
from hpcfl.start.components.load_data import load_data
from hpcfl.start.components.model_function import model_function, require_of_run
from hpcfl.start.components.training import carrying, stored
from hpcfl.start.load_run import load_run
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from hpcfl.store.schema import StateSchema
from hpcfl.types import Vector

Arrays = dict[str, NDArray[Any]]


def load_model(
    root: Path, *, round: int | None = None, best: bool = False, client: int | None = None
) -> nn.Module:
    """The global model of a checkpoint, or a client's, as a module on the CPU in evaluation mode.

    The run may be alive.  Its data are loaded, for the shape of the inputs.

    Args:
        root: the run directory.
        round: which checkpoint; the newest when None.
        best: the model of the best evaluated round instead.
        client: whose own model it is.

    Raises:
        JobError: the directory holds no run or not that round, or keeps no best model; the clients
            have no models of their own.
        StoreError: the checkpoint is damaged.
    """
    if best and (round is not None or client is not None):
        raise JobError("load_model: best is the model of its own round; leave out round and client")
    with readable(root):
        saved = SavedModels(RunDir(root))
        return saved.module(saved.arrays(round, best=best, client=client)).eval()


class SavedModels:
    """The models and the client states that a run's checkpoints hold.

    Nothing of the run is changed or locked: it may be alive.

    Args:
        folder: the run directory.

    Raises:
        JobError: it holds no run.
    """

    def __init__(self, folder: RunDir) -> None:
        folder.require()
        self._folder, self._loaded = folder, load_run(folder)

    def arrays(
        self,
        round: int | None = None,
        *,
        best: bool = False,
        client: int | None = None,
        states: bool = False,
    ) -> Arrays:
        """A model, flat, and client states, by name.

        Args:
            round: of which checkpoint; the newest when None.
            best: the model of the best evaluated round instead; its score stands under its name.
            client: whose own model it is, instead of the global one.
            states: add ``client`` [n], the ids of those that ever took part, and their states:
                ``state_FIELD`` [n, ...].

        Returns:
            ``x`` [P]; ``statistics`` [Q], if rounds move any; ``round``; and what is asked for.

        Raises:
            JobError: there is no such checkpoint, best model or client, or clients have no models
                of their own.
            StoreError: the checkpoint or a store is damaged.
        """

        def read(found: Checkpoint) -> Arrays:
            return self._best(found) if best else self._of(found, client=client, states=states)

        return read_newest(self._folder.checkpoints, read, round)

    def module(self, arrays: Mapping[str, NDArray[Any]]) -> nn.Module:
        """The run's module with the parameters ``x``, and ``statistics`` if there are any."""
        module = self._module
        load_vector(module, torch.from_numpy(arrays["x"]))
        read_buffers(self._folder.buffers, buffers(module))
        if "statistics" in arrays:
            load_statistics(module, torch.from_numpy(arrays["statistics"]))
        return module

    def _best(self, checkpoint: Checkpoint) -> Arrays:
        """The best model as of a checkpoint."""
        folder = self._folder
        content = dict(read_files(checkpoint)).get(BEST)
        files = read_run_files(checkpoint, folder.root)
        if content is None:
            raise JobError(
                f"{folder.root}: keeps no best model up to round {checkpoint.round}; its job needs "
                "evaluate.best: true, and an evaluation before the checkpoint"
            )
        found = BestModel.unpack(content, checkpoint.folder / BEST)
        return {
            **_point(found.x, initial.read(folder.initial, files[INITIAL]).numel()),
            "round": np.array(found.round),
            found.name: np.array(found.score),
        }

    def _of(self, checkpoint: Checkpoint, *, client: int | None, states: bool) -> Arrays:
        """The model and the states of a checkpoint.

        Sizes come from the initial model in the run directory, so that no data have to be loaded,
        but for the layers of the model where the algorithm asks for them.
        """
        folder, job = self._folder, self._loaded.job
        x0 = initial.read(folder.initial, read_run_files(checkpoint, folder.root)[INITIAL])
        # What the data say is in the history too, but in that of an older run or of a lost one.
        start = folder.last_start
        clients = start.get("clients") or job.data.population or 1
        statistics = self._initial_statistics()
        carried = None if statistics is None else carried_statistics(job)
        facts = facts_of(job, clients, start.get("classes"), None, carried)
        facts = facts._replace(layout=cache(lambda: layout_of(self._module)))
        # The form of a kept state follows from the layout in a user's optimiser at most.
        asks = job.local.keep_optimizer and isinstance(job.local.optimizer, Own)
        descent = job.local.descent(layout_of(self._module) if asks else stand_in(x0.numel()))
        algorithm = carrying(job, job.algorithm.with_facts(facts), statistics, descent)
        schema = dry_round(algorithm, x0.numel(), x0.dtype)
        found = read_checkpoint(checkpoint, schema.server, torch.device("cpu"))
        x, kept, own = evaluated_point(algorithm, found.server), stored(job, schema), Arrays()
        if states or client is not None:
            table = Table.load(checkpoint.folder, folder.stores, found.row_tables)
            if states:
                own = _states(table, kept)
            if client is not None:
                with Reader(table, kept) as reader:
                    state = reader.read(client)
                if state is None:
                    state = self._first_state(algorithm, client, x0)
                else:
                    state = _widened(state, schema.client_state)
                x = self._personal_model(algorithm, client, state, x)
        return {**_point(x, x0.numel()), "round": np.array(checkpoint.round), **own}

    def _initial_statistics(self) -> Vector | None:
        """[Q], the running statistics that the run's model was made with; None if rounds move none.

        Which buffers they are the model tells: it is built, and its data are loaded, where it has
        batch normalisation.
        """
        if not any(name.endswith(COUNTER) for name in stored_names(self._folder.buffers)):
            return None
        module = self._module
        read_buffers(self._folder.buffers, buffers(module))
        return initial_statistics(module) if statistics_of(module) else None

    def _first_state(self, algorithm: Algorithm, client: int, x0: Vector) -> Any:
        """The state of a client that never took part; None where it makes no difference."""
        if not algorithm.has_personal_models:
            return None
        job, loaded = self._loaded.job, self._loaded
        dataset = load_data(loaded)
        clients = len(split_examples(job.data, dataset, job.seed).rows)
        if not 0 <= client < clients:
            raise JobError(f"client: found {client}, expected a number from 0 to {clients - 1}")
        seed = key(job.seed, "fresh", client=client)
        return algorithm.init_client(x0, lambda: draw_model(loaded, dataset, seed)[0])

    def _personal_model(self, algorithm: Algorithm, client: int, state: Any, x: Vector) -> Vector:
        """A client's own point beside the evaluated one ``x``.

        Raises:
            JobError: the algorithm makes no such models.
        """
        made = personal_point(algorithm, x, state)
        if made is None:
            raise JobError(
                f"client: found {client}, but {self._loaded.names['algorithm']} makes no models of "
                "the clients' own, as fedper and ditto do; leave it out"
            )
        return made

    @cached_property
    def _module(self) -> nn.Module:
        """The job's module in training mode; its data are loaded for the shape of its inputs.

        Raises:
            JobError, StoreError: it is not the one with which the run began.
        """
        folder, loaded = self._folder, self._loaded
        # The run's seed: a model may draw what is neither a parameter nor a buffer.
        dataset = load_data(loaded)
        model = build_model(loaded, dataset, key(loaded.job.seed, "model"))
        put_in_training(model, frozen=loaded.job.model.statistics == "frozen")
        files = read_newest(folder.checkpoints, partial(read_run_files, root=folder.root))
        x0, size = initial.read(folder.initial, files[INITIAL]), layout_of(model).total
        if size != len(x0):
            raise StoreError(
                f"{folder.root}: the model has {size} parameters with the data and code as they "
                f"are now, {len(x0)} in the checkpoint; put back the run's data and code"
            )
        if FUNCTION in files:
            read_buffers(folder.buffers, buffers(model))
            now = model_function(loaded, model, x0, dataset)
            require_of_run(now, files[FUNCTION], folder.function)
        return model


def _widened(state: Any, schema: StateSchema) -> Any:
    """A state in the types in which it is trained."""
    fields = zip(state, schema.fields, strict=True)
    return type(state)(*(leaf.to(field.dtype) for leaf, field in fields))


def _point(point: Vector, size: int) -> dict[str, NDArray[Any]]:
    """A model's parameters [P], P = ``size``, and its running statistics, if it has some."""
    statistics = {"statistics": _array(point[size:])} if len(point) > size else {}
    return {"x": _array(point[:size]), **statistics}


def _states(table: Table, kept: StateSchema) -> dict[str, NDArray[Any]]:
    """The ids and states of the clients that have one, ascending."""
    arrays = {
        f"state_{field.name}": np.empty(
            (len(table.clients), *field.shape), _array(torch.empty(0, dtype=field.dtype)).dtype
        )
        for field in kept.fields
    }
    with Reader(table, kept) as reader:
        for row, client in enumerate(table.clients):
            state = reader.read(int(client))
            for field in kept.fields:
                arrays[f"state_{field.name}"][row] = _array(getattr(state, field.name))
    return {"client": table.clients, **arrays}


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor in numpy, which has no bfloat16: such values become float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
