"""Export the contents of a checkpoint as files for other programs."""

import io
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors
from torch import nn

from hpcfl.algorithms.base import Algorithm
from hpcfl.checkpoint import initial
from hpcfl.checkpoint.best import BestModel
from hpcfl.checkpoint.buffers import read as read_buffers
from hpcfl.checkpoint.buffers import stored_names
from hpcfl.checkpoint.format import copied, read_checkpoint
from hpcfl.data.split import split_examples
from hpcfl.engine.dry_round import dry_round
from hpcfl.engine.statistics import evaluated_point, personal_point
from hpcfl.errors import DiskError, JobError, StoreError
from hpcfl.io.files import readable
from hpcfl.job.load_run import load_run
from hpcfl.job.schema import LoadedJob, carried_statistics, facts_of
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
    committed_folders,
    find,
    read_files,
    read_run_files,
    rounds,
)
from hpcfl.runs.outputs import check_output, write_output
from hpcfl.seeds import key
from hpcfl.setup.initial_model import build_model, draw_model
from hpcfl.setup.load_data import load_data
from hpcfl.setup.model_function import model_function, require_of_run
from hpcfl.setup.training import stored, with_statistics
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from hpcfl.store.schema import StateSchema
from hpcfl.types import Vector

T = TypeVar("T")
Built = Callable[[], nn.Module]  # builds the run's model once, see ``_built``
_NPZ, _STATE_DICT = (".npz",), (".safetensors",)  # the endings of the names


def export(
    root: Path,
    *,
    round: int | None,
    npz: Path | None,
    state_dict: Path | None,
    clients: bool,
    best: bool = False,
    client: int | None = None,
) -> list[Path]:
    """Write a checkpoint's global model or a client's own, and its client states, to files.

    The run may be alive: nothing of it is changed or locked.

    Args:
        root: the run directory.
        round: which checkpoint; the newest when None.
        npz: gets ``x``, the flat model, ``round``, and ``statistics``, if rounds move any.
        state_dict: gets the model's parameters and buffers by name, as safetensors.
        clients: add ``client`` [n], the ids of those that ever took part, to ``npz``, and their
            states: ``state_FIELD`` [n, ...].
        best: the model of the best evaluated round instead of a checkpoint's; its score goes into
            ``npz`` under its name.
        client: whose own model is written instead of the global one.

    Returns:
        The files written.

    Raises:
        JobError: the directory holds no run or not that round, the clients have no models of their
            own, or a file cannot be written.
        StoreError: the checkpoint or a store is damaged, or a file cannot be written.
    """
    outputs = [(p, end) for p, end in ((npz, _NPZ), (state_dict, _STATE_DICT)) if p is not None]
    if not outputs:
        raise JobError("export: nothing to write; give -o F.npz or --state-dict F.safetensors")
    if clients and npz is None:
        raise JobError("export: --clients adds to an .npz; give -o F.npz")
    if best and (round is not None or clients or client is not None):
        raise JobError(
            "export: --best is a model of its own round without client states; leave out --round, "
            "--client and --clients"
        )
    for path, endings in outputs:
        check_output(path, endings)
    folder = RunDir(root)
    with readable(root):
        folder.require()
        loaded = load_run(folder)
        built = cache(partial(_built, folder, loaded))
        arrays = _read(folder, round, loaded, built, clients=clients, best=best, client=client)
    if npz is not None:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        write_output(npz, buffer.getvalue(), _NPZ)
    if state_dict is not None:
        model = _model(folder, built(), arrays)
        tensors = {name: copied(tensor) for name, tensor in model.state_dict().items()}
        write_output(state_dict, save_tensors(tensors), _STATE_DICT)
    return [path for path, _ in outputs]


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
    folder = RunDir(root)
    with readable(root):
        folder.require()
        loaded = load_run(folder)
        built = cache(partial(_built, folder, loaded))
        arrays = _read(folder, round, loaded, built, clients=False, best=best, client=client)
        return _model(folder, built(), arrays).eval()


def _read(
    folder: RunDir,
    round: int | None,
    loaded: LoadedJob,
    built: Built,
    *,
    clients: bool,
    best: bool,
    client: int | None,
) -> dict[str, NDArray[Any]]:
    """The arrays of the .npz."""

    def read(found: Checkpoint) -> dict[str, NDArray[Any]]:
        if best:
            return _best(found, folder)
        return _arrays(found, folder, loaded, built, clients=clients, client=client)

    return read_newest(folder, read, round)


def read_newest(folder: RunDir, read: Callable[[Checkpoint], T], round: int | None = None) -> T:
    """What ``read`` finds in a run's newest checkpoint, or in that of a round.

    If a live run deletes the checkpoint meanwhile, its newest one is read instead.

    Raises:
        StoreError: there is no checkpoint, or it is damaged.
        JobError: there is none of the round.
    """
    while True:
        before = _manifests(folder)
        try:
            return read(find(folder.checkpoints, rounds(folder.checkpoints, round)[-1]))
        except (StoreError, DiskError):  # NFS reports a deleted file as a disk error
            if before <= _manifests(folder):  # no checkpoint was deleted: this one is damaged
                raise


def _best(checkpoint: Checkpoint, folder: RunDir) -> dict[str, NDArray[Any]]:
    """The arrays of the .npz, for the best model as of a checkpoint."""
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


def _point(point: Vector, size: int) -> dict[str, NDArray[Any]]:
    """A model's parameters [P], P = ``size``, and its running statistics, if it has some."""
    statistics = {"statistics": _array(point[size:])} if len(point) > size else {}
    return {"x": _array(point[:size]), **statistics}


def _manifests(folder: RunDir) -> set[Path]:
    return set(committed_folders(folder.checkpoints))


def _arrays(
    checkpoint: Checkpoint,
    folder: RunDir,
    loaded: LoadedJob,
    built: Built,
    *,
    clients: bool,
    client: int | None,
) -> dict[str, NDArray[Any]]:
    """The arrays of a checkpoint.

    Sizes come from the initial model in the run directory, so that no data have to be loaded, but
    for the layers of the model where the algorithm asks for them.
    """
    job = loaded.job
    x0 = initial.read(folder.initial, read_run_files(checkpoint, folder.root)[INITIAL])
    # What the data say is in the history too, but in that of an older run or of a lost one.
    start = folder.last_start
    clients_known = start.get("clients") or job.data.population or 1
    statistics = _statistics(folder, built)
    carried = None if statistics is None else carried_statistics(job)
    facts = facts_of(job, clients_known, start.get("classes"), None, carried)
    facts = facts._replace(layout=cache(lambda: layout_of(built())))
    algorithm = with_statistics(job, job.algorithm.with_facts(facts), statistics)
    schema = dry_round(algorithm, x0.numel(), x0.dtype)
    found = read_checkpoint(checkpoint, schema.server, torch.device("cpu"))
    states: dict[str, NDArray[Any]] = {}
    x = evaluated_point(algorithm, found.server)
    if clients or client is not None:
        table = Table.load(checkpoint.folder, folder.stores, found.row_tables)
        kept = stored(job, schema)
        if clients:
            states = _states(table, kept)
        if client is not None:
            x = _personal_model(table, kept, schema.client_state, algorithm, loaded, client, x, x0)
    return {
        **_point(x, x0.numel()),
        "round": np.array(checkpoint.round),
        **states,
    }


def _statistics(folder: RunDir, built: Built) -> Vector | None:
    """[Q], the running statistics that the run's model was made with; None if rounds move none.

    Which buffers they are the model tells: it is built, and its data are loaded, where it has
    batch normalisation.
    """
    if not any(name.endswith(COUNTER) for name in stored_names(folder.buffers)):
        return None
    model = built()
    read_buffers(folder.buffers, buffers(model))
    return initial_statistics(model) if statistics_of(model) else None


def _personal_model(
    table: Table,
    kept: StateSchema,
    schema: StateSchema,
    algorithm: Algorithm,
    loaded: LoadedJob,
    client: int,
    x: Vector,
    x0: Vector,
) -> Vector:
    """A client's own point beside the evaluated one ``x``; of its first state if it has no other.

    Raises:
        JobError: the algorithm makes no such models, or there is no such client.
    """
    with Reader(table, kept) as reader:
        state = reader.read(client)
    if state is not None:
        state = type(state)(
            *(leaf.to(field.dtype) for leaf, field in zip(state, schema.fields, strict=True))
        )
    elif algorithm.has_personal_models:
        dataset = load_data(loaded)
        clients = len(split_examples(loaded.job.data, dataset, loaded.job.seed).rows)
        if not 0 <= client < clients:
            raise JobError(f"client: found {client}, expected a number from 0 to {clients - 1}")
        seed = key(loaded.job.seed, "fresh", client=client)
        state = algorithm.init_client(x0, lambda: draw_model(loaded, dataset, seed)[0])
    made = personal_point(algorithm, x, state)
    if made is None:
        raise JobError(
            f"client: found {client}, but {loaded.names['algorithm']} makes no models of "
            "the clients' own, as fedper and ditto do; leave it out"
        )
    return made


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


def _built(folder: RunDir, loaded: LoadedJob) -> nn.Module:
    """The job's model in training mode; its data are loaded for the shape of its inputs.

    Raises:
        JobError, StoreError: it is not the model with which the run began.
    """
    # The run's seed: a model may draw what is neither a parameter nor a buffer.
    dataset = load_data(loaded)
    model = build_model(loaded, dataset, key(loaded.job.seed, "model"))
    put_in_training(model, frozen=loaded.job.model.statistics == "frozen")
    files = read_newest(folder, partial(read_run_files, root=folder.root))
    x0, size = initial.read(folder.initial, files[INITIAL]), layout_of(model).total
    if size != len(x0):
        raise StoreError(
            f"{folder.root}: the model has {size} parameters with the data and code as they are "
            f"now, {len(x0)} in the checkpoint; put back the run's data and code"
        )
    if FUNCTION in files:
        read_buffers(folder.buffers, buffers(model))
        now = model_function(loaded, model, x0, dataset)
        require_of_run(now, files[FUNCTION], folder.function)
    return model


def _model(folder: RunDir, model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> nn.Module:
    """The run's model with the parameters ``x``, and ``statistics`` if there are any."""
    load_vector(model, torch.from_numpy(arrays["x"]))
    read_buffers(folder.buffers, buffers(model))
    if "statistics" in arrays:
        load_statistics(model, torch.from_numpy(arrays["statistics"]))
    return model
