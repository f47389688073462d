"""A block gathers at once what each client's visit would have given, in a few operations."""

from threading import Condition

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hpcfl.clients.client_pool import ClientData, ClientPool, ClientTests
from hpcfl.clients.padded_batches import PaddedBatches
from hpcfl.clients.section import Local
from hpcfl.data.base import Dataset
from hpcfl.data.images import CropFlipNormalize
from hpcfl.data.sources.arrays import cast
from hpcfl.errors import JobError
from hpcfl.types import Examples

torch.set_num_threads(1)

CPU = torch.device("cpu")
SIZES = (9, 1, 4, 10, 7, 3, 12, 2, 8)  # examples of the clients
DRAW = np.random.default_rng(0)
IMAGES = torch.from_numpy(DRAW.integers(0, 256, (sum(SIZES), 8, 6, 3), dtype=np.uint8))
LABELS = torch.arange(sum(SIZES))  # so that a label names its example
ROWS = np.split(DRAW.permutation(sum(SIZES)), np.cumsum(SIZES)[:-1])
TRANSFORM = CropFlipNormalize(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), padding=2)
PLAIN = CropFlipNormalize(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), padding=2, augment=False)
EPOCHS = {"epochs": 2, "batch_size": 4}


class StateArena:
    """A file of the images that notes what is read."""

    shape, dtype, workers = tuple(IMAGES.shape), torch.uint8, 2

    def __init__(self):
        self.rows, self.more = set(), Condition()

    def read(self, rows):
        with self.more:
            self.rows |= set(rows.tolist())
            self.more.notify()
        return IMAGES[torch.from_numpy(rows)]


def population(local=EPOCHS, inputs=IMAGES, transform=TRANSFORM, personal=None):
    data = Dataset(
        train=Examples(inputs, LABELS),
        test=None,
        natural=None,
        classes=100,
        loss="cross_entropy",
        transform=transform,
        personal=personal,
    )
    return ClientPool(
        ClientData(data, ROWS, ClientTests("train", ROWS)),
        Local(lr=1.0, **local), local_lr=lambda *_: 1.0, seed=3,
        dtype=torch.float32, device=CPU, full_batch=5,
    )  # fmt: skip


def laid(made, clients, size, steps=None):
    """The steps of a block of so many places, 13 wide."""
    tasks = [made.task(client, 2) for client in clients]
    if steps is not None:
        one = torch.tensor(steps)
        tasks = [v._replace(client=v.client._replace(steps=one), steps=steps) for v in tasks]
    return list(PaddedBatches(size, 13, made.block_batches()).steps(tasks))


@pytest.mark.parametrize("transform", [TRANSFORM, PLAIN], ids=["augmented", "plain"])
@pytest.mark.parametrize(
    "local",
    [
        EPOCHS,
        {"steps": 7, "batch_size": 3, "drop_last": True},
        {"epochs": 3, "batch_size": "full"},
    ],
)
@pytest.mark.parametrize("places", [10**6, 5 * 13 * 2, 1], ids=["once", "by two steps", "by one"])
def test_the_same_bits_as_from_each_client(transform, local, places, monkeypatch):
    """Ragged sizes and numbers of steps, two places without a client; memory for few steps."""
    monkeypatch.setattr("hpcfl.clients.padded_batches.MAX_INDICES", places)
    made, clients = population(local, transform=transform), (0, 6, 1)
    alone = [list(made.task(client, 2).batches) for client in clients]
    steps = laid(made, clients, 5)
    assert len(steps) == max(map(len, alone))
    for step, batches in enumerate(steps):
        own = [batches_of[step] if step < len(batches_of) else None for batches_of in alone]
        stands_in = next(batch for batch in own if batch is not None)
        assert batches.active.tolist() == [batch is not None for batch in [*own, None, None]]
        for k, batch in enumerate([*own, None, None]):
            count = 0 if batch is None else len(batch.labels)
            assert batches.counts[k].tolist() == [1.0] * count + [0.0] * (13 - count)
            batch = batch or stands_in
            places_of = list(range(len(batch.labels)))
            places_of += [0] * (13 - len(places_of))
            assert torch.equal(batches.inputs[k], batch.inputs[places_of])
            assert torch.equal(batches.labels[k], batch.labels[places_of])


@pytest.mark.parametrize("held", [IMAGES, StateArena()], ids=["memory", "file"])
def test_batches_made_early_are_those_made_alone(held, monkeypatch):
    """In bits and in order in memory; of 10 images at most, then of all of the visit's."""
    found = []
    for most in (0, 10 * IMAGES[0].nbytes, 1 << 18):
        monkeypatch.setattr("hpcfl.clients.prefetch.PREFETCH_BYTES", most)
        calls = []

        class Noting(CropFlipNormalize):
            def __call__(self, inputs, dtype, draws, calls=calls):
                calls.append(len(inputs))
                return super().__call__(inputs, dtype, draws)

        noting = Noting(mean=TRANSFORM.mean, std=TRANSFORM.std, padding=2)
        made = population({"steps": 5, "batch_size": 4}, held, noting)
        found.append((list(made.task(0, 2).batches), calls))
    (alone, each), (some, tens), (many, once) = found
    assert (each, tens, once) == ([4, 4, 1, 4, 4], [9, 8], [17])
    for batches in (some, many):
        for expected, batch in zip(alone, batches, strict=True):
            assert torch.equal(batch.inputs, expected.inputs)
            assert torch.equal(batch.labels, expected.labels)
            assert batch.inputs.is_contiguous(memory_format=torch.channels_last)


def test_batches_made_early_lie_where_torch_would_put_them():
    """On a CPU, MKL's products of rows that do not begin at 64 bytes have other last bits."""
    made = population({"steps": 3, "batch_size": 3}, torch.randn(sum(SIZES), 5), cast)
    batches = list(made.task(3, 0).batches)
    assert [batch.inputs.data_ptr() % 64 for batch in batches] == [0, 0, 0]


def test_augmentation_is_new_each_round_and_each_pass_and_each_clients_own():
    made = population({"epochs": 2, "batch_size": "full"}, transform=TRANSFORM)
    first, again = (list(made.task(6, t).batches) for t in (2, 3))
    assert torch.equal(first[0].labels, first[1].labels)  # a full batch is not shuffled
    for one, other in ((first[0], first[1]), (first[0], again[0])):
        assert not torch.equal(one.inputs, other.inputs)
    draws = [next(made.task(client, 2).batch_indices).draws for client in (0, 3)]
    assert not np.array_equal(draws[0][:9], draws[1][:9])
    assert next(population(transform=PLAIN).task(0, 2).batch_indices).draws is None


def test_only_the_steps_that_are_asked_for():
    made = population()
    (step,), (whole, *_) = laid(made, (6, 0), 2, steps=1), laid(made, (6, 0), 2)
    assert torch.equal(step.inputs, whole.inputs)


def test_layout_in_memory_is_that_of_a_stack():
    """Which kernels a layer takes, and so its bits, may depend on it."""
    for step in laid(population(), (0, 6), 3):
        assert step.inputs.is_contiguous()


class Counted(TorchDispatchMode):
    """How many operations torch plays."""

    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        return func(*args, **(kwargs or {}))


def operations(size, made):
    """Of the second step of a block of so many clients; nothing of a first use is in it."""
    tasks = [made.task(client, 2) for client in range(size)]
    steps = PaddedBatches(size, 13, made.block_batches()).steps(tasks)
    next(steps)
    with Counted() as counted:
        next(steps)
    return counted.operations


def test_a_step_takes_as_many_operations_for_two_clients_as_for_eight():
    local = {"steps": 3, "batch_size": 4}
    two, eight = (operations(size, population(local)) for size in (2, 8))
    assert two == eight <= 60
    apart = population(local, personal=lambda client: TRANSFORM)
    assert operations(8, apart) > 2 * operations(2, apart)  # which this does see


def test_clients_that_see_each_in_their_own_way_are_asked_one_by_one():
    def personal(client):
        return TRANSFORM if client else PLAIN

    made = population(personal=personal)
    assert made.block_batches() is None
    steps, alone = laid(made, (0, 6), 2), [list(made.task(i, 2).batches) for i in (0, 6)]
    for k, batches in enumerate(alone):
        assert torch.equal(steps[0].inputs[k, :4], batches[0].inputs)


@pytest.mark.parametrize("whole", [10**6, 10], ids=["whole", "by batches"])
def test_out_of_a_file_it_is_the_same_and_read_ahead(whole, monkeypatch):
    """The file's steps are asked for one by one; draws stay with their examples."""
    monkeypatch.setattr("hpcfl.clients.examples.WHOLE_CLIENT_BYTES", whole)
    shelf = StateArena()
    made, held = population(inputs=shelf), population()
    assert made.block_batches() is None
    made.prefetch([0, 6, 3, 4])
    for found, expected in zip(laid(made, (0, 6), 3), laid(held, (0, 6), 3), strict=True):
        for part in ("inputs", "labels", "counts"):
            a, b = getattr(found, part), getattr(expected, part)
            assert torch.equal(a, b)
    ahead = {int(row) for client in (3, 4) for row in ROWS[client]}
    if whole > 10:  # the clients after the block's
        with shelf.more:
            assert shelf.more.wait_for(lambda: ahead <= shelf.rows, 300)


@pytest.mark.parametrize("apart", [False, True], ids=["together", "one by one"])
def test_the_time_that_batches_take_is_counted(apart, monkeypatch):
    """By a clock that a transform alone moves, ten seconds a call."""
    now = [0.0]

    class Slow:
        augment = True

        def __call__(self, inputs, dtype, draws):
            now[0] += 10
            return TRANSFORM(inputs, dtype, draws)

    monkeypatch.setattr("hpcfl.clients.client_pool.perf_counter", lambda: now[0])
    slow = Slow()
    made = population(
        {"steps": 3, "batch_size": 4}, transform=slow, personal=(lambda _: slow) if apart else None
    )
    for _ in PaddedBatches(2, 13, made.block_batches()).steps([made.task(i, 2) for i in (0, 6)]):
        now[0] += 1  # training
    assert made.pop_elapsed_s() == (20 if apart else 30)  # a call for each visit, or for each step
    assert made.pop_elapsed_s() == 0
    list(made.task(0, 2).batches)
    assert made.pop_elapsed_s() == 10


class Mute:
    """A transform whose author mistyped ``augment``."""

    augments = True

    def __call__(self, inputs, dtype, draws):
        return cast(inputs, dtype, draws)


def test_a_transform_that_does_not_say_whether_it_augments_is_refused():
    with pytest.raises(JobError, match="the transform Mute does not say whether it takes draws"):
        population(transform=Mute())
    made = population(transform=PLAIN, personal=lambda client: Mute())
    with pytest.raises(JobError, match="the transform Mute"):
        next(made.task(0, 0).batches)
