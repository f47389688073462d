"""What a run left, in a form that is equal only if every bit is."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from hpcfl.job.load import load
from hpcfl.runs.log_keys import measured
from hpcfl.runs.manifest import committed
from hpcfl.start.components.build import build_components
from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table


class Outcome(NamedTuple):
    round: int
    server: dict[str, str]
    clients: dict[int, dict[str, str]]
    """Of every client that has a state."""
    log: list[dict[str, Any]]
    """Without what is measured: times, what is made of them, memory."""


def bits(tensor: torch.Tensor) -> str:
    """A digest of dtype, shape and bytes."""
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {sha256(data).hexdigest()}"


def outcome(run: Path) -> Outcome:
    """Of the newest checkpoint of a run directory, and its log up to there."""
    newest = committed(run / "checkpoints")[-1]
    schema = build_components(
        load(run / "job.yaml"), torch.device("cpu"), resumed=True
    ).training.stored_state
    table = Table.load(newest.folder, run / "stores")
    clients = {}
    with Reader(table, schema) as reader:
        for client in table.clients.tolist():
            state = reader.read(client)
            clients[client] = {n: bits(v) for n, v in zip(state._fields, state, strict=True)}
    server = {n: bits(v) for n, v in load_file(newest.folder / "server.safetensors").items()}
    lines = (run / "log.jsonl").read_bytes()[: newest.log.length].decode().splitlines()
    return Outcome(newest.round, server, clients, [_timeless(line) for line in lines])


def _timeless(line: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(line).items() if not measured(key)}


def log(run: Path) -> list[dict[str, Any]]:
    """Every line of its log."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def model(run: Path) -> torch.Tensor:
    """The newest checkpoint's model."""
    return load_file(committed(run / "checkpoints")[-1].folder / "server.safetensors")["x"]
