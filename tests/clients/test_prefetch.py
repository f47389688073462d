"""The batches of a round's clients, made several clients at a time."""

import weakref
from itertools import chain, zip_longest

import numpy as np
import pytest
import torch

from hpcfl.clients.client_pool import ClientData, ClientPool, ClientTests
from hpcfl.clients.examples import Chunks
from hpcfl.clients.section import Local
from hpcfl.data.base import Dataset
from hpcfl.data.images import CropFlipNormalize
from hpcfl.data.sources.arrays import cast
from hpcfl.types import Examples

torch.set_num_threads(1)

SIZES = (9, 1, 4, 10, 7, 3, 12, 2, 8)  # examples of the clients
COHORT = [6, 0, 3, 1, 8]
DRAW = np.random.default_rng(0)
IMAGES = torch.from_numpy(DRAW.integers(0, 256, (sum(SIZES), 8, 6, 3), dtype=np.uint8))
LABELS = torch.arange(sum(SIZES))  # so that a label names its example
ROWS = np.split(DRAW.permutation(sum(SIZES)), np.cumsum(SIZES)[:-1])
LOCALS = [
    {"epochs": 2, "batch_size": 4},
    {"steps": 7, "batch_size": 3, "drop_last": True},
    {"epochs": 1, "batch_size": "full"},
]


class Noting(CropFlipNormalize):
    """A transform that notes for how many examples it is called."""

    def __call__(self, inputs, dtype, draws):
        NOTED.append(len(inputs))
        return super().__call__(inputs, dtype, draws)


NOTED = []
TRANSFORM = Noting(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), padding=2)
PLAIN = Noting(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), padding=2, augment=False)


class File:
    """The images in a file."""

    shape, dtype, workers = tuple(IMAGES.shape), torch.uint8, 2

    def read(self, rows):
        return IMAGES[torch.from_numpy(rows)]


def pool(local=LOCALS[0], inputs=IMAGES, transform=TRANSFORM, personal=None):
    data = Dataset(
        train=Examples(inputs, LABELS), test=None, natural=None, classes=100, loss="cross_entropy",
        transform=transform, personal=personal,
    )  # fmt: skip
    return ClientPool(
        ClientData(data, ROWS, ClientTests("train", ROWS)),
        Local(lr=1.0, **local), local_lr=lambda *_: 1.0, seed=3,
        dtype=torch.float32, device=torch.device("cpu"), full_batch=5,
    )  # fmt: skip


def in_turn(tasks):
    """The batches of each task, one of every task after the other."""
    rounds = list(zip_longest(*(task.batches for task in tasks)))
    return [[batch for batch in own if batch] for own in zip(*rounds, strict=True)]


ORDERS = {
    "in order": lambda tasks: [list(task.batches) for task in tasks],
    "backwards": lambda tasks: [list(task.batches) for task in reversed(tasks)][::-1],
    "in turn": in_turn,
}


@pytest.mark.parametrize("take", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("transform", [TRANSFORM, PLAIN], ids=["augmented", "plain"])
@pytest.mark.parametrize("local", LOCALS, ids=["epochs", "steps", "full"])
def test_joined_batches_are_those_of_each_client_alone(local, transform, take, monkeypatch):
    alone = [list(pool(local, transform=transform).task(i, 2).batches) for i in COHORT]
    for most in (0, 30, 1000):  # examples in a group of clients
        monkeypatch.setattr("hpcfl.clients.prefetch.PREFETCH_BYTES", most * IMAGES[0].nbytes)
        found = take(pool(local, transform=transform).tasks(COHORT, 2))
        for batch, expected in zip(chain(*found), chain(*alone), strict=True):
            assert torch.equal(batch.inputs, expected.inputs)
            assert torch.equal(batch.labels, expected.labels)
            assert batch.inputs.stride() == expected.inputs.stride()
            assert batch.inputs.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    ("most", "calls"), [(1000, [32]), (22, [21, 11]), (12, [12, 9, 11]), (11, [12, 9, 11])]
)
def test_small_clients_are_transformed_together(most, calls, monkeypatch):
    """Clients of 12, 9, 10 and 1 examples; one that is larger than the limit is alone."""
    monkeypatch.setattr("hpcfl.clients.prefetch.PREFETCH_BYTES", most * IMAGES[0].nbytes)
    NOTED.clear()
    for task in pool(LOCALS[2]).tasks([6, 0, 3, 1], 0):
        list(task.batches)
    assert calls == NOTED


def test_only_groups_of_which_a_batch_is_taken_are_made(monkeypatch):
    monkeypatch.setattr("hpcfl.clients.prefetch.PREFETCH_BYTES", 22 * IMAGES[0].nbytes)
    NOTED.clear()
    tasks = pool(LOCALS[2]).tasks([6, 0, 3, 1], 0)  # of 12, 9, 10 and 1 examples
    assert NOTED == []
    next(tasks[3].batches)
    assert NOTED == [11]
    next(tasks[2].batches)
    assert NOTED == [11]
    next(tasks[1].batches)
    assert NOTED == [11, 21]


@pytest.mark.parametrize("apart", [{"inputs": File()}, {"personal": lambda client: TRANSFORM}])
def test_clients_of_a_file_or_of_several_transforms_are_made_alone(apart):
    NOTED.clear()
    made = pool(LOCALS[2], **apart)
    made.prefetch([6, 0])
    for task in made.tasks([6, 0], 0):
        list(task.batches)
    assert NOTED == [12, 9]


def test_no_client_is_no_task():
    assert pool().tasks([], 0) == []


def test_an_error_is_raised_for_the_client_that_it_is_of():
    """The example of client 1 is refused; clients 0 and 3 are in its group."""
    bad = int(ROWS[1][0])

    def refusing(inputs, dtype, draws):
        if (inputs == bad).any():
            raise ValueError("a bad example")
        return cast(inputs, dtype, draws)

    tasks = pool(LOCALS[2], LABELS[:, None], refusing).tasks([0, 1, 3], 0)
    assert len(next(tasks[0].batches).labels) == 9
    with pytest.raises(ValueError, match="a bad example"):
        next(tasks[1].batches)
    assert len(next(tasks[2].batches).labels) == 10


@pytest.mark.parametrize("inputs", [IMAGES, File()], ids=["memory", "file"])
@pytest.mark.parametrize("most", [1, 1000])
def test_no_batch_outlives_its_step(inputs, most, monkeypatch):
    """Though tasks live until the end of the round."""
    monkeypatch.setattr("hpcfl.clients.prefetch.PREFETCH_BYTES", most * IMAGES[0].nbytes)
    made = pool(inputs=inputs)
    made.prefetch(COHORT)
    tasks = made.tasks(COHORT, 0)
    for task in tasks:
        for _ in range(int(task.client.steps)):
            batch = weakref.ref(next(task.batches).inputs)
            assert batch() is None


def test_the_examples_of_a_file_are_dropped_with_their_clients_last_batch(monkeypatch):
    known = []

    class Noted(Chunks):
        def __init__(self, futures):
            super().__init__(futures)
            known.append(weakref.ref(self))

    monkeypatch.setattr("hpcfl.clients.examples.Chunks", Noted)
    made = pool(inputs=File())
    made.prefetch(COHORT)
    tasks = made.tasks(COHORT, 0)
    for task in tasks:
        for _ in range(int(task.client.steps)):
            next(task.batches)
    assert len(known) == len(COHORT)
    assert sum(chunks() is not None for chunks in known) == 1  # the last client's
