"""The trial before round 1 holds few vectors of the model at once: a model may fill the memory."""

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcfl.job.load import load
from hpcfl.start.checks.preflight import check_components
from hpcfl.start.components.build import build_components

WIDTH = 600


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


@pytest.mark.parametrize(("name", "most"), [("fedavg", 20), ("scaffold", 40)])
def test_live_bytes_of_a_parameter(name, most):
    """Of float32: with two clients, whose vectors come one after the other."""
    job = {
        "task": "digits",
        "data": {"clients": 4, "partition": {"kind": "iid"}},
        "model": {"name": "module", "of": f"{__name__}.wide"},
        "algorithm": {"name": name},
        "cohort": {"kind": "uniform", "size": 2},
        "local": {"steps": 2, "batch_size": 10, "lr": 0.05, "weight_decay": 0.01},
        "rounds": 2,
    }
    components = build_components(load(job), torch.device("cpu"))
    size = components.model.x0.numel()
    with LiveBytes(size) as live:  # a layer's gradient counts too
        check_components(components)
    assert live.most / size <= most
