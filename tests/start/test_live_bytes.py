"""A run holds few vectors of the model at once: a model may fill the memory."""

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcfl.comm import exact
from hpcfl.engine.loop import run_rounds
from hpcfl.job.load import load
from hpcfl.start import rounds
from hpcfl.start.checks.preflight import check_components
from hpcfl.start.components.build import build_components
from hpcfl.start.start import resume, start

WIDTH = 600
SMALL = 0.5  # bytes a parameter, of tensors that are no vectors


def wide():
    """A network whose parameters take far more memory than its activations."""
    return nn.Sequential(
        nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors of ``least`` bytes or more held at once."""

    def __init__(self, least):
        super().__init__()
        self.least, self.most, self.held = least, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, made)):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes() >= self.least:
                storage = leaf.untyped_storage()
                self.held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.held = {at: kept for at, kept in self.held.items() if not kept[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.held.values()))
        return made


def job_of(name, size=2, **changes):
    return {
        "task": "digits",
        "data": {"clients": 6, "partition": {"kind": "iid"}},
        "model": {"name": "module", "of": f"{__name__}.wide"},
        "algorithm": {"name": name},
        "cohort": {"kind": "uniform", "size": size},
        "local": {"steps": 2, "batch_size": 10, "lr": 0.05, "weight_decay": 0.01},
        "rounds": 3,
        **changes,
    }


@pytest.mark.parametrize(("name", "most"), [("fedavg", 20), ("scaffold", 40)])
def test_live_bytes_of_a_parameter_in_the_trial(name, most):
    """Of float32: with two clients, whose vectors come one after the other."""
    components = build_components(load(job_of(name)), torch.device("cpu"))
    size = components.model.x0.numel()
    with LiveBytes(size) as live:  # a layer's gradient counts too
        check_components(components)
    assert live.most / size <= most


@pytest.fixture
def live_in_rounds(monkeypatch):
    """The most bytes of large tensors in the rounds of each start, over the parameters."""
    found = []
    monkeypatch.setitem(exact._BLOCK, "cpu", 1 << 12)  # else as large as this model

    def counted(run, server, done):
        size = server.x.numel()
        with LiveBytes(size) as live:
            held = [server]  # itself and nothing else may keep it
            del server
            ended = run_rounds(run, held.pop(), done)
        found.append(live.most / size)
        return ended

    monkeypatch.setattr(rounds, "run_engine", counted)
    return found


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_live_bytes_of_a_parameter_in_rounds(tmp_path, live_in_rounds, clients):
    """The model and K uploads, and 8 bytes: of the sum, or of a client's model and gradient."""
    start(load(job_of("fedavg", clients)), tmp_path / "run")
    assert live_in_rounds[0] <= 12 + 4 * clients + SMALL


def test_live_bytes_after_a_resume_with_a_best_model(tmp_path, live_in_rounds):
    """The best model is one of those that there are, or 4 bytes more."""
    every = {"evaluate": {"every": 1, "best": True}, "checkpoint": {"every": 1}}
    start(load(job_of("fedavg", **every, rounds=2)), tmp_path / "run")
    resume(tmp_path / "run", ["rounds=4"])
    assert len(live_in_rounds) == 2
    assert max(live_in_rounds) <= 12 + 4 * 2 + 4 + SMALL
