"""A local step of a block reads and writes no more bytes than when its bound was written.

The operations are those of an executor on a GPU, counted on meta tensors, which have shapes and no
values: no clock and no GPU is needed.  A cost that grows with the square of a text's length shows
here, and so does a copy of all parameters that nobody needs.
"""

import math
from importlib import import_module
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcfl.algorithms.facts import Client
from hpcfl.algorithms.fedavg import FedAvg
from hpcfl.algorithms.optim import Descent, Sgd
from hpcfl.clients.padded_batches import PaddedBatch, PaddedBatches
from hpcfl.clients.task import NUMBERS, tensors_of
from hpcfl.local.block import Block
from hpcfl.local.block_gradients import BlockGradients
from hpcfl.local.gradient import Gradient
from hpcfl.local.lanes import LaneGradients, Lanes, _Memory
from hpcfl.local.sequential import Sequential
from hpcfl.local.step import Carry
from hpcfl.models import MODELS
from hpcfl.models.dropout import replace_dropout
from hpcfl.models.flat_vector import layout_of
from hpcfl.models.losses import LOSSES
from hpcfl.types import Batch
from tests.algorithms.facts import COHORT

ABOVE = 1.1  # times a case's figures: versions of torch decompose an operation differently
BELOW = 0.8  # a step that has become cheaper than this gets new figures, or they guard nothing


class Case(NamedTuple):
    """A block of a model, and what one local step of FedAvg in it costs."""

    clients: int
    batch: int
    shape: tuple[int, ...]  # of one example
    outputs: int
    calls: int  # of aten, those that only make views apart
    gigabytes: float  # read and written by them
    loss: str = "cross_entropy"


IMAGE = (3, 32, 32)
CASES = {
    "char_lstm": Case(10, 100, (80,), 80, 4_872, 11.9),
    "cnn_fedavg": Case(10, 10, (1, 28, 28), 10, 76, 1.79),
    "cnn_pfl": Case(50, 10, IMAGE, 10, 115, 11.5),
    "lenet": Case(10, 64, IMAGE, 10, 83, 5.27),
    "linear": Case(10, 64, (64,), 10, 37, 1.33e-3),
    "logistic": Case(10, 64, (28, 28), 26, 37, 0.0193),
    "mobilenet_v2": Case(4, 32, (3, 224, 224), 1203, 1_018, 124.6),
    "point": Case(10, 1, (2, 20), 1, 27, 2.93e-5, "quadratic"),
    "resnet18": Case(10, 20, IMAGE, 100, 453, 11.0),
    "resnet20": Case(10, 64, IMAGE, 10, 461, 40.8),
    "word_lstm": Case(10, 16, (20,), 10_004, 671, 15.7, "tokens"),
}


class Count(TorchDispatchMode):
    """Counts calls of aten, and the bytes of their inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given, made = (
            [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
            for tree in ((args, kwargs), out)
        )
        memory = {leaf.untyped_storage()._cdata for leaf in given}
        views = all(leaf.untyped_storage()._cdata in memory for leaf in made)
        allocates = func.overloadpacket.__name__.startswith(("empty", "new_empty"))
        if not allocates and (func._schema.is_mutable or not views):
            self.calls += 1
            self.bytes += sum(map(bytes_of, [*given, *made]))
        return out


def bytes_of(tensor):
    """The bytes of the elements that a tensor has in memory: expanded ones are there once."""
    held = math.prod(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step)
    return min(held * tensor.element_size(), tensor.untyped_storage().nbytes())


class Launches:
    """Stands for a kernel of Triton, and counts its launches and their tensors."""

    def __init__(self, count, name):
        self._count, self._name = count, name

    def __getitem__(self, grid):
        return self

    def __call__(self, *given, **_):
        tensors = [leaf for leaf in given if isinstance(leaf, Tensor)]
        if self._name == "update":  # its first tensor is read and written
            tensors.append(tensors[0])
        self._count.calls += 1
        self._count.bytes += sum(map(bytes_of, tensors))


def replace_kernels(monkeypatch, count):
    """Count the launches of all kernels in place of launching them."""
    for module in ("conv", "group_norm", "lstm", "pool", "update"):
        found = import_module(f"hpcfl.local.triton_kernels.{module}")
        for name, kernel in vars(found).items():
            if hasattr(kernel, "arg_names"):
                monkeypatch.setattr(found, name, Launches(count, name))


def count_step(name, case, convolutions="products", descend=None, count=None):
    """One local step of FedAvg in a block of the model."""
    count = count or Count()
    model = MODELS[name]().build(case.shape, case.outputs).to("meta")
    replace_dropout(model)
    loss, layout = LOSSES[case.loss], layout_of(model)
    sequential = Sequential(FedAvg(), Gradient(model, loss), Descent(Sgd(), 1e-3, layout))
    steps = []
    Block(
        sequential,
        BlockGradients(model, loss, convolutions),
        PaddedBatches(case.clients, case.batch),
        (),
        lambda step: steps.append(step) or step,
        descend,
    )
    algorithm, first = sequential.algorithm, (case.clients, case.batch)
    with torch.device("meta"):
        numbers = [torch.empty(case.clients, dtype=torch.float64) for _ in range(5)]
        client = tensors_of(Client(*numbers)) | dict(zip(NUMBERS, numbers, strict=True))
        y = torch.empty(case.clients, layout.total)
        message = algorithm.broadcast(algorithm.init_server(torch.empty(layout.total)), COHORT)
        text = name.endswith("lstm")
        inputs = torch.empty(*first, *case.shape, dtype=torch.int64 if text else torch.float32)
        labels = torch.empty(*first, *(case.shape if case.loss == "tokens" else ()))
        labels = labels if case.loss == "quadratic" else labels.long()
        seeds = torch.empty(case.clients, dtype=torch.int64)
        batch = PaddedBatch(inputs, labels, torch.empty(first), seeds)
    local = vmap(lambda tensors: algorithm.begin(message, (), Client(**tensors)))(client)
    carry = Carry(y, local, sequential.descent.init(y))
    with count:
        steps[0](carry, client, batch)
    return count


def count_lane(name, case):
    """One local step of FedAvg in a lane of the model."""
    model = MODELS[name]().build(case.shape, case.outputs).to("meta")
    replace_dropout(model)
    loss, layout = LOSSES[case.loss], layout_of(model)
    one = Sequential(FedAvg(), Gradient(model, loss), Descent(Sgd(), 1e-3, layout))
    with torch.device("meta"):
        inputs = torch.empty(1, case.batch, *case.shape)
        labels = torch.empty(1, case.batch, dtype=torch.int64)
        batch = PaddedBatch(inputs, labels, torch.empty(1, case.batch), labels[:, 0])
        y = torch.empty(layout.total)
    message = one.algorithm.broadcast(one.algorithm.init_server(y), COHORT)
    local = one.algorithm.begin(message, (), None)
    pair = Batch(inputs[0], labels[0])
    lanes = Lanes(one, LaneGradients(model, loss), PaddedBatches(1, case.batch), pair, (), 1)
    slot = (Carry(y, local, one.descent.init(y)), {})
    memory = _Memory(batch, lanes._orders, slot, 1, by_step=False)
    with Count() as count:
        lanes._plain_step(memory, 0)
    return count


def test_every_model_has_its_bound():
    assert {*CASES, "module"} == set(MODELS)


@pytest.mark.parametrize("name", CASES)
def test_step(name):
    case = CASES[name]
    count = count_step(name, case)
    require_near(count, case.calls, case.gigabytes)


# By triton, and in a lane of one client.
TRITON = {"lenet": (87, 1.14), "cnn_pfl": (123, 4.19), "resnet20": (346, 8.54)}
LANES = {"lenet": (66, 0.169), "cnn_pfl": (102, 0.111), "resnet20": (218, 1.00)}


def require_near(count, calls, gigabytes):
    """Neither dearer nor much cheaper than it was."""
    assert BELOW * calls < count.calls < ABOVE * calls
    assert BELOW * gigabytes < count.bytes / 1e9 < ABOVE * gigabytes


@pytest.mark.parametrize("name", TRITON)
def test_step_by_triton(name, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("torch.is_autocast_enabled", lambda _: False)  # knows no "meta"
    replace_kernels(monkeypatch, count := Count())
    update = import_module("hpcfl.local.triton_kernels.update")
    require_near(count_step(name, CASES[name], "triton", update.descend, count), *TRITON[name])


@pytest.mark.parametrize("name", LANES)
def test_step_in_a_lane(name, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    require_near(count_lane(name, CASES[name]), *LANES[name])
