"""Export a model and the client states of a run's checkpoint as files for other programs."""

import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import DiskError, JobError, StoreError
from hpcfl.io.files import readable
from hpcfl.io.tensor_file import on_cpu, parts_of
from hpcfl.runs.layout import RunDir
from hpcfl.runs.outputs import check_output, write_output
from hpcfl.runs.record import read_run
from hpcfl.runs.run_score import deciding_scores
from hpcfl.runs.score_names import SCORES
from hpcfl.start.saved_models import SavedModels

_NPZ, _STATE_DICT = (".npz",), (".safetensors",)  # the endings of the names


class Exported(NamedTuple):
    """What was exported."""

    paths: list[Path]
    """The files written."""
    text: str
    """Of which model, round and score they are."""


def export(
    root: Path,
    *,
    round: int | None,
    npz: Path | None,
    state_dict: Path | None,
    clients: bool,
    best: bool = False,
    client: int | None = None,
) -> Exported:
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
    with readable(root):
        saved = SavedModels(RunDir(root))
        arrays = saved.arrays(round, best=best, client=client, states=clients)
    if npz is not None:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        write_output(npz, buffer.getvalue(), _NPZ)
    if state_dict is not None:
        module = saved.module(arrays)
        tensors = {name: on_cpu(tensor) for name, tensor in module.state_dict().items()}
        write_output(state_dict, b"".join(parts_of(tensors)), _STATE_DICT)
    return Exported([path for path, _ in outputs], _described(root, arrays, client, best=best))


def _described(
    root: Path, arrays: Mapping[str, NDArray[Any]], client: int | None, *, best: bool
) -> str:
    """The model, its round and its score in words: "the model after round 4: test_loss 0.31".

    Args:
        root: the run directory.
        arrays: of ``SavedModels.arrays``.
        client: whose own model it is.
        best: whether it is the best one, whose score is in ``arrays``.
    """
    round = int(arrays["round"])
    if client is not None:
        return f"client {client}'s own model after round {round}"
    scores = {key: float(value) for key, value in arrays.items() if key in SCORES}
    if not best:
        with suppress(JobError, StoreError, DiskError):  # a damaged log keeps no model back
            run = read_run(root)
            known = {key: dict(run.scores[key]) for key in deciding_scores(personal=run.personal)}
            scores = {key: values[round] for key, values in known.items() if round in values}
    score = next((f"{key} {value:.4g}" for key, value in scores.items()), "not evaluated")
    return f"the {'best ' * best}model after round {round}: {score}"
