"""Splits by class: how classes are divided, what every client holds, and what is refused."""

from hashlib import sha256

import numpy as np
import pytest

from hpcfl.data.partition import Classes, DirichletPerClass, Quantity
from hpcfl.errors import JobError
from tests.data.test_split import LABELS, OWNED, assert_only_the_seed_determines, split

NEW = [
    Classes(per_client=2),
    Classes(per_client=1),
    Classes(per_client=3, form="exact"),
    DirichletPerClass(alpha=0.5, least=1),
    DirichletPerClass(alpha=5.0),
    DirichletPerClass(alpha=0.5, balance=True),
    Quantity(alpha=2.0, least=3),
    Quantity(form="lognormal", sigma=1.0),
    Quantity(form="power", exponent=1.2, least=1),
]
UNEVEN = np.random.default_rng(1).permutation(np.repeat([0, 1, 2, 5], [400, 300, 200, 100]))


def held(rows, labels=LABELS, classes=10):
    """[N, classes] examples of every client and class."""
    return np.array([np.bincount(labels[own], minlength=classes) for own in rows])


@pytest.mark.parametrize("labels", [LABELS, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("clients", [1, 10, 20])
@pytest.mark.parametrize("partition", NEW, ids=str)
def test_rows_are_used_once_and_no_client_is_empty(partition, clients, labels):
    rows = split(partition, clients, labels)
    assert len(rows) == clients
    dealt = np.concatenate(rows)
    assert len(set(dealt)) == len(dealt)
    assert min(map(len, rows)) >= getattr(partition, "least", 1)
    assert all(own.dtype == np.int64 and np.all(np.diff(own) > 0) for own in rows)
    unused = clients < len(set(labels)) and getattr(partition, "form", "") == "exact"
    assert unused or len(dealt) == 1000


@pytest.mark.parametrize("partition", NEW, ids=str)
def test_only_the_seed_determines_a_split(partition):
    assert_only_the_seed_determines(partition)


RECORDED = [
    "abe65b1280970da3",
    "596f382c7f2d3d88",
    "88bbd2357b68d0e9",
    "9d1f2272d5fa87f5",
    "8d2393d930c67474",
    "9f4750e62593fdbb",
    "113c21cce952766b",
    "378e7fae151f848a",
    "11ee0b0160a06b75",
]


@pytest.mark.parametrize(("partition", "digest"), [*zip(NEW, RECORDED, strict=True)], ids=str)
def test_a_seed_gives_the_recorded_split(partition, digest):
    rows = split(partition, 20, LABELS, seed=7)
    owner = np.full(1000, -1, dtype="<i8")
    for client, own in enumerate(rows):
        owner[own] = client
    assert sha256(owner.tobytes()).hexdigest()[:16] == digest


def test_natural_clients_are_pooled():
    rows = split(Classes(per_client=1), None, np.arange(9), natural=OWNED)
    assert sorted(np.concatenate(rows)) == [0, 1, 2, 5, 7, 8]
    assert [len(own) for own in rows] == [2, 2, 2]


# shards


def test_shards_of_whole_classes():
    """1000 examples in 40 shards of 25, four to each class of 100."""
    counts = np.array([held(split(Classes(per_client=2), 20, LABELS, seed)) for seed in range(10)])
    assert set(counts.ravel()) == {0, 25, 50}  # 50: two shards of one class
    assert (counts.sum(axis=2) == 50).all()
    assert (counts.sum(axis=1) == 100).all()
    assert len({tuple(own) for own in counts[0]}) > 10  # shards are dealt at random


def test_shards_by_hand():
    """Six examples in three shards: 0 0 | 0 1 | 1 1."""
    labels = np.array([1, 0, 1, 0, 1, 0])
    rows = split(Classes(per_client=1), 3, labels)
    assert sorted(sorted(labels[own].tolist()) for own in rows) == [[0, 0], [0, 1], [1, 1]]


def test_shards_of_unequal_size_differ_by_one():
    sizes = sorted(map(len, split(Classes(per_client=3), 7, LABELS)))
    assert sum(sizes) == 1000  # 13 shards of 48 and 8 of 47
    assert 3 * 47 <= sizes[0] <= sizes[-1] <= 3 * 48


def test_more_shards_than_examples():
    with pytest.raises(JobError, match="600 clients of 2 shards need 1200 training examples"):
        split(Classes(per_client=2), 600, LABELS)


# exactly so many classes


@pytest.mark.parametrize("per_client", [1, 2, 7, 10])
@pytest.mark.parametrize("clients", [10, 23])
def test_every_client_holds_exactly_so_many_classes(per_client, clients):
    counts = held(split(Classes(per_client=per_client, form="exact"), clients, LABELS))
    assert ((counts > 0).sum(axis=1) == per_client).all()
    assert (counts.sum(axis=0) == 100).all()
    assert (counts[np.arange(clients), np.arange(clients) % 10] > 0).all()
    for of_class in counts.T:
        given = of_class[of_class > 0]
        assert given.max() - given.min() <= 1


def test_exact_classes_by_hand():
    """Four clients, two classes, one each: 0 1 0 1; class 0 has 5 examples: 3 and 2."""
    labels = np.array([0, 1, 0, 1, 0, 0, 0])
    rows = split(Classes(per_client=1, form="exact"), 4, labels)
    assert [labels[own].tolist() for own in rows] == [[0, 0, 0], [1], [0, 0], [1]]


def test_the_other_classes_are_drawn_evenly():
    """3000 clients of class 0, 1 or 2 and one of the other two: half of them the one."""
    labels = np.repeat([0, 1, 2], 3000)
    counts = held(split(Classes(per_client=2, form="exact"), 3000, labels), labels, 3)
    first = np.arange(3000) % 3
    next_one = (first + 1) % 3
    assert np.mean(counts[np.arange(3000), next_one] > 0) == pytest.approx(0.5, abs=0.04)


def test_labels_of_absent_classes_are_no_classes():
    """Of 10 classes the examples have 4: 0, 1, 2 and 5; clients 3 and 7 begin with 5."""
    rows = split(Classes(per_client=1, form="exact"), 8, UNEVEN)
    assert [set(UNEVEN[own]) for own in rows] == [{0}, {1}, {2}, {5}] * 2
    with pytest.raises(JobError, match=r"per_client: found 5, but .* are of 4 classes"):
        split(Classes(per_client=5, form="exact"), 8, UNEVEN)


def test_classes_that_no_client_drew_are_unused():
    rows = split(Classes(per_client=1, form="exact"), 2, LABELS)
    assert [set(LABELS[own]) for own in rows] == [{0}, {1}]
    assert sum(map(len, rows)) == 200


def test_a_class_of_fewer_examples_than_clients():
    labels = np.array([0, 0, 0, 0, 1])
    with pytest.raises(JobError, match="class 1 has 1 training examples for 2 clients that hold"):
        split(Classes(per_client=1, form="exact"), 4, labels)


# a Dirichlet distribution over the clients for each class


def test_the_shares_of_a_class_have_the_moments_of_their_distribution():
    """Dir(alpha, ..., alpha) of N: mean 1/N, variance (1/N)(1 - 1/N) / (N alpha + 1)."""
    classes, clients, alpha = 200, 10, 0.5
    labels = np.repeat(np.arange(classes), 1000)
    rows = split(DirichletPerClass(alpha=alpha), clients, labels, classes=classes)
    shares = held(rows, labels, classes) / 1000
    assert shares.sum(axis=0) == pytest.approx(np.ones(classes))
    assert shares.mean(axis=1) == pytest.approx(np.full(clients, 0.1), abs=0.05)
    assert shares.var() == pytest.approx(0.1 * 0.9 / (clients * alpha + 1), rel=0.1)


def test_sizes_are_unequal_unless_balanced():
    sizes = [len(own) for own in split(DirichletPerClass(alpha=0.5), 10, LABELS)]
    balanced = split(DirichletPerClass(alpha=0.5, balance=True), 10, LABELS)
    assert np.std(sizes) > 1.5 * np.std([len(own) for own in balanced])


def test_a_balanced_client_with_its_share_takes_no_more_classes():
    """Whoever has 100 of 1000 examples after some classes holds none of those that follow."""
    full = 0
    for seed in range(10):
        counts = held(split(DirichletPerClass(alpha=0.3, balance=True), 10, LABELS, seed))
        before = np.cumsum(counts, axis=1) - counts
        assert (counts[before >= 100] == 0).all()
        full += np.count_nonzero(before >= 100)
    assert full > 50


@pytest.mark.parametrize("least", [1, 25])
def test_it_is_drawn_again_until_every_client_has_enough(least):
    smallest = [
        min(map(len, split(DirichletPerClass(alpha=0.5, least=least), 20, LABELS, seed)))
        for seed in range(20)
    ]
    assert min(smallest) >= least
    assert (min(smallest) < 10) == (least == 1)


def test_no_draw_gives_every_client_enough():
    message = (
        r"least: in 1000 draws with alpha 0\.01 one of the 20 clients always had fewer than 10 "
        r"examples \(at best 0\); set alpha higher"
    )
    with pytest.raises(JobError, match=message):
        split(DirichletPerClass(alpha=0.01), 20, LABELS)
    for balance in (True, False):
        with pytest.raises(JobError, match="in 1000 draws with alpha 1e-300"):
            split(DirichletPerClass(alpha=1e-300, balance=balance), 20, LABELS)


def test_fewer_examples_than_clients_need():
    with pytest.raises(JobError, match="101 clients of at least 10 need 1010 training examples"):
        split(DirichletPerClass(alpha=1.0), 101, LABELS)


# data without classes


@pytest.mark.parametrize("partition", [p for p in NEW if not isinstance(p, Quantity)], ids=str)
def test_targets_of_a_regression_are_no_classes(partition):
    targets = np.linspace(0, 1, 1000)[:, None]
    with pytest.raises(JobError, match=f"{partition.kind} needs one label per example"):
        split(partition, 20, targets, classes=None)
    tokens = np.zeros((1000, 7), dtype=np.int64)
    with pytest.raises(JobError, match=f"{partition.kind} needs one label per example"):
        split(partition, 20, tokens)
