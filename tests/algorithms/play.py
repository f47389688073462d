"""Plays a job in this process, from a plain tree, and reads back everything it left."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from hpcfl.job.load import load
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.manifest import committed
from hpcfl.start.components.build import build_components
from hpcfl.start.components.components import Components
from hpcfl.start.start import Result, start
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table

Array = NDArray[np.float64]

ROUNDS = 6


class Problem(NamedTuple):
    """Examples and who holds them."""

    x: Array  # [n, features]
    y: NDArray[Any]  # [n], integers (classes) or floats (targets)
    client: NDArray[np.int64]  # [n]

    @property
    def population(self) -> int:
        return int(self.client.max()) + 1

    def rows(self, client: int) -> NDArray[np.int64]:
        """A client's examples, in the order of the file."""
        return np.flatnonzero(self.client == client)

    def write(self, folder: Path) -> dict[str, Any]:
        """The data section of a job."""
        path = folder / "problem.npz"
        np.savez(path, x=self.x, y=self.y, client=self.client)
        return {"kind": "arrays", "path": str(path)}


def softmax_problem(sizes: Sequence[int] = (3, 8, 5, 12, 7, 1), seed: int = 0) -> Problem:
    """Three classes, four features; clients of very different sizes and means."""
    draw = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    draw.shuffle(client)
    x = draw.normal(size=(len(client), 4)) + 0.8 * draw.normal(size=(len(sizes), 4))[client]
    y = np.argmax(x @ draw.normal(size=(4, 3)) + draw.normal(size=(len(client), 3)), axis=1)
    y[:3] = [0, 1, 2]
    return Problem(x, y, client)


class Shifted(nn.Sequential):
    """``linear`` with its bias in a normalisation layer: the same function of the parameters."""

    class Shift(nn.GroupNorm):
        """Divides by nothing."""

        def forward(self, outputs: torch.Tensor) -> torch.Tensor:
            return outputs + self.bias

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        linear, shift = nn.Linear(prod(input_shape), outputs), self.Shift(1, outputs)
        shift.weight.requires_grad_(False)
        shift.bias.data = linear.bias.data  # drawn as in ``linear``
        linear.bias = None
        super().__init__(nn.Flatten(), linear, shift)


def model_for(algorithm: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest model that a method can be played with."""
    if algorithm["name"] == "fedbn":  # which keeps normalisation layers
        return {"name": "module", "of": f"{__name__}.Shifted"}
    return {"name": "linear"}


def local_for(algorithm: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The local section, with what the method demands.

    Streaming DiLoCo gets steps in place of epochs, and it and DiLoCo a word on whether clients keep
    a velocity.
    """
    found = dict(local)
    if algorithm["name"] == "streaming_diloco" and "steps" not in found:
        found["steps"] = 2 * found.pop("epochs", 1)
    if algorithm["name"] in ("diloco", "streaming_diloco") and found.get("momentum"):
        found.setdefault("keep_optimizer", False)
    return found


def tree(
    folder: Path, problem: Problem, algorithm: Mapping[str, Any], **changes: Any
) -> dict[str, Any]:
    """A job of full participation in float64; ``changes`` replace its keys.

    Centralised training gets the problem pooled in one client, and DP-FedAvg the uniform weights
    that it demands; see ``local_for`` too.
    """
    pooled = algorithm["name"] == "centralized"
    if algorithm["name"] == "dpfedavg":
        changes["weights"] = "uniform"
    local = changes.pop("local", {"epochs": 2, "batch_size": 4, "lr": 0.3})
    return {
        "data": problem.write(folder) | ({"partition": {"kind": "pooled"}} if pooled else {}),
        "model": model_for(algorithm),
        "cohort": {"kind": "cyclic", "size": 1 if pooled else problem.population},
        "algorithm": dict(algorithm),
        "local": local_for(algorithm, local),
        "precision": "float64",
        "rounds": ROUNDS,
        "device": "cpu",
        "seed": 5,
        **changes,
    }


def read(folder: Path, job: Mapping[str, Any]) -> LoadedJob:
    """The job checked, as a user's file would be."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(dict(job)))
    return load(path)


def play(folder: Path, job: Mapping[str, Any]) -> Result:
    """Run the job into a new directory below ``folder``."""
    return start(read(folder, job), folder / f"run{len(list(folder.glob('run*')))}")


def kept(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job, with a checkpoint after every round that is never removed."""
    return {**job, "checkpoint": {"every": 1, "keep": 10_000}}


def servers(run: Path) -> list[dict[str, Array]]:
    """The server in every kept checkpoint, oldest first."""
    return [
        {name: value.numpy() for name, value in load_file(c.folder / "server.safetensors").items()}
        for c in committed(run / "checkpoints")
    ]


def xs(folder: Path, job: Mapping[str, Any]) -> Array:
    """[rounds + 1, P]: the model before and after every round of the job."""
    return np.stack([server["x"] for server in servers(play(folder, kept(job)).directory)])


def parts(folder: Path, job: Mapping[str, Any]) -> Components:
    """What the job describes."""
    return build_components(read(folder, job), torch.device("cpu"))


def states(run: Path, parts: Components, index: int = -1) -> list[Any]:
    """Every client's state in a kept checkpoint (the newest), None where it has none."""
    folder = committed(run / "checkpoints")[index].folder
    with Reader(Table.load(folder, run / "stores"), parts.training.schema.client_state) as reader:
        return [reader.read(client) for client in range(len(parts.population.rows))]
