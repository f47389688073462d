import tracemalloc
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import pytest
import torch

from hpcfl.data.base import DataConfig, Dataset
from hpcfl.data.partition import (
    Classes,
    Contiguous,
    Dirichlet,
    File,
    Iid,
    Natural,
    Pooled,
    RowRanges,
    Similarity,
    bytes_of,
)
from hpcfl.data.sources.arrays import cast
from hpcfl.data.split import (
    keep_natural_clients,
    partition_examples,
    with_checked_clients,
)
from hpcfl.errors import DataError, JobError
from hpcfl.types import Examples
from tests.real_data import real


@dataclass(frozen=True, kw_only=True)
class Given(DataConfig):
    def load(self, seed):
        raise NotImplementedError


def dataset(labels, natural=None, classes=10):
    labels = torch.as_tensor(labels)
    return Dataset(Examples(labels, labels), None, natural, classes, "cross_entropy", cast)


def split(partition, clients, labels, seed=0, **rest):
    return partition_examples(
        Given(partition=partition, clients=clients), dataset(labels, **rest), seed
    ).rows


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
ALL = [
    Iid(),
    Dirichlet(alpha=0.0),
    Dirichlet(alpha=0.1),
    Dirichlet(alpha=1e-9),
    Dirichlet(alpha=1e-320),
    Dirichlet(alpha=1e4),
    Dirichlet(alpha=0.0, form="symmetric"),
    Dirichlet(alpha=0.1, form="symmetric"),
    Dirichlet(alpha=1e-320, form="symmetric"),
    Dirichlet(alpha=0.6, form="symmetric", order="clients"),
    Dirichlet(alpha=1e4, order="random"),
    Similarity(percent=0.0),
    Similarity(percent=13.0),
    Similarity(percent=100.0),
]


@pytest.mark.parametrize("clients", [1, 7, 20, 1000])
@pytest.mark.parametrize("partition", ALL, ids=str)
def test_every_row_is_dealt_once_in_equal_shares(partition, clients):
    rows = split(partition, clients, LABELS)
    sizes = [len(r) for r in rows]
    assert len(rows) == clients
    assert max(sizes) - min(sizes) <= 1
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(1000))
    assert all(r.dtype == np.int64 for r in rows)


def assert_only_the_seed_determines(partition):
    def text(seed, own=None):
        return str(split(type(partition)(**{**vars(partition), "seed": own}), 20, LABELS, seed))

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(1, own=5) == text(2, own=5) == text(5)


@pytest.mark.parametrize("partition", ALL, ids=str)
def test_only_the_seed_determines_a_split(partition):
    assert_only_the_seed_determines(partition)


@pytest.mark.parametrize("partition", [Dirichlet(alpha=0.0), Similarity(percent=0.0)], ids=str)
def test_sorted_shards_hold_one_class_each(partition):
    rows = split(partition, 20, LABELS)
    assert [set(LABELS[r]) for r in rows] == [{client // 2} for client in range(20)]


def test_contiguous_shares_are_in_the_order_of_the_examples():
    rows = split(Contiguous(), 3, LABELS[:8])
    assert [own.tolist() for own in rows] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    natural = [np.array([4, 7]), np.array([0, 1, 2])]  # one client after the other
    rows = split(Contiguous(), 2, LABELS[:8], natural=natural)
    assert [own.tolist() for own in rows] == [[0, 4, 7], [1, 2]]


def test_similarity_deals_its_percentage_at_random():
    rows = split(Similarity(percent=40.0), 10, LABELS)
    own = [np.bincount(LABELS[r], minlength=10)[client] for client, r in enumerate(rows)]
    # 60 of 100 come from the sorted rest, and of the other 40 a tenth or so by chance.
    assert np.mean(own) == pytest.approx(64, abs=6)


@pytest.mark.parametrize("partition", [Iid(), Similarity(percent=100.0), Dirichlet(alpha=1e4)])
def test_iid_like_splits_hold_every_class_about_equally(partition):
    labels = np.repeat(np.arange(10), 2000)
    counts = [np.bincount(labels[r], minlength=10) for r in split(partition, 10, labels)]
    # Five standard deviations; the last client takes what the others' draws left over.
    assert np.abs(np.array(counts[:-1]) - 200).max() < 70


def test_dirichlet_has_the_moments_of_its_proportions():
    # Two classes, p = (1/4, 3/4), alpha 2: q_0 ~ Beta(1/2, 3/2), mean 1/4, variance 1/16.
    labels = np.repeat([0, 1], [10_000, 30_000])
    rows = split(Dirichlet(alpha=2.0), 400, labels)
    share = np.array([np.mean(labels[r] == 0) for r in rows[:200]])
    assert share.mean() == pytest.approx(0.25, abs=0.06)
    assert share.var() == pytest.approx(1 / 16 + 0.25 * 0.75 / 100, rel=0.3)


def test_the_symmetric_form_does_not_follow_the_classes_frequencies():
    # Two classes, p = (1/4, 3/4), alpha 1/2: q_0 ~ Beta(1/2, 1/2), mean 1/2, variance 1/8.
    labels = np.repeat([0, 1], [10_000, 30_000])
    rows = split(Dirichlet(alpha=0.5, form="symmetric", order="clients"), 400, labels)
    share = np.array([np.mean(labels[r] == 0) for r in rows[:100]])
    assert share.mean() == pytest.approx(0.5, abs=0.11)
    assert share.var() == pytest.approx(1 / 8 + 1 / 8 / 100, rel=0.3)


def test_a_random_order_has_the_moments_of_the_proportions():
    # Two balanced classes, alpha 2: q_0 ~ Beta(2, 2), mean 1/2, variance 1/20.
    labels = np.repeat([0, 1], 20_000)
    rows = split(Dirichlet(alpha=2.0, form="symmetric"), 400, labels)
    share = np.array([np.mean(labels[r] == 0) for r in rows])
    assert share.var() == pytest.approx(1 / 20 + (1 / 4 - 1 / 20) / 100, rel=0.2)


@pytest.mark.parametrize("order", ["random", "clients"])
def test_the_forms_agree_for_balanced_classes_with_alpha_times_their_number(order):
    def drawn(**settings):
        return [rows.tolist() for rows in split(Dirichlet(**settings, order=order), 20, LABELS)]

    assert drawn(alpha=0.5, form="symmetric") == drawn(alpha=5.0)
    assert drawn(alpha=0.5, form="symmetric") != drawn(alpha=0.5)
    assert drawn(alpha=0.0, form="symmetric") == drawn(alpha=0.0)


@pytest.mark.parametrize(
    ("form", "order", "digest"),
    [
        ("prior", None, "c1a07af29052c86c"),
        ("prior", "clients", "c1a07af29052c86c"),
        ("symmetric", "clients", "f94b95ad21d0c4ed"),  # the only order of earlier versions
    ],
)
def test_a_seed_gives_the_recorded_split(form, order, digest):
    owner = np.full(1000, -1, dtype="<i8")
    for client, own in enumerate(
        split(Dirichlet(alpha=0.6, form=form, order=order), 20, LABELS, seed=7)
    ):
        owner[own] = client
    assert sha256(owner.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    "partition",
    [
        Iid(),
        *(Dirichlet(alpha=alpha, form="symmetric") for alpha in (0.06, 0.6, 10.0)),
        Dirichlet(alpha=6.0, order="random"),
        Classes(per_client=2),
        Similarity(percent=10.0),
        Similarity(percent=90.0),
    ],
    ids=str,
)
def test_first_and_last_clients_are_alike(partition):
    """No client's number tells how its labels are mixed: the mean entropies differ by noise."""

    def entropies(seed):
        held = [
            np.bincount(LABELS[own], minlength=10) for own in split(partition, 20, LABELS, seed)
        ]
        shares = np.array(held) / 50
        return -np.sum(shares * np.log(np.maximum(shares, 1e-300)), axis=1)

    found = np.array([entropies(seed) for seed in range(60)])
    first, last = found[:, :2].ravel(), found[:, -2:].ravel()
    noise = np.sqrt((first.var() + last.var()) / first.size)
    assert abs(first.mean() - last.mean()) <= 4 * noise + 1e-12


def test_a_class_that_runs_out_is_lacked_by_all():
    """As published splits, order: clients leaves the last ones without it."""
    labels = np.repeat([0, 1], [950, 50])

    def of_class_1(order):
        rows = split(Dirichlet(alpha=100.0, form="symmetric", order=order), 10, labels)
        return [int(labels[own].sum()) for own in rows]

    assert of_class_1("clients")[0] > 40
    assert 0 < min(of_class_1(None)) <= max(of_class_1(None)) < 12


@pytest.mark.parametrize(
    ("partition", "labels", "note"),
    [
        (Dirichlet(alpha=5.0, form="symmetric"), LABELS, None),
        (
            Dirichlet(alpha=1000.0, form="symmetric"),
            np.repeat([0, 1], [950, 50]),
            "data.partition: classes ran out: 10 of 10 clients hold other classes than they drew "
            "in more than a third of their examples, client 3 in 49 %",
        ),
        (
            Dirichlet(alpha=5.0, form="symmetric", order="clients"),
            LABELS,
            "data.partition: classes ran out: 1 of 10 clients hold other classes than they drew in "
            "more than a third of their examples, client 9 in 46 %; with order: random all "
            "clients lack them alike",
        ),
    ],
)
def test_a_note_tells_of_classes_that_ran_out(partition, labels, note):
    config = Given(partition=partition, clients=10)
    notes = partition_examples(config, dataset(labels), 0).notes
    assert notes == (() if note is None else (note,))


def test_a_small_alpha_is_nearly_one_class_per_client():
    rows = split(Dirichlet(alpha=1e-9), 10, LABELS)
    assert len(set(LABELS[rows[0]])) == 1


def test_iid_with_a_number_of_examples_leaves_the_rest_out():
    rows = split(Iid(examples=30), 4, LABELS)
    assert [len(r) for r in rows] == [30] * 4
    assert len(set(np.concatenate(rows))) == 120
    with pytest.raises(JobError, match=r"partition\.examples: 4 clients of 300 need 1200"):
        split(Iid(examples=300), 4, LABELS)


OWNED = [np.array([0, 1, 2]), np.array([5]), np.array([7, 8])]


def test_natural_clients_are_the_default_where_there_are_any():
    rows = split(None, None, np.zeros(9, int), natural=OWNED)
    assert [list(r) for r in rows] == [[0, 1, 2], [5], [7, 8]]
    assert len(split(None, 3, np.zeros(9, int))) == 3  # iid elsewhere


def test_some_natural_clients_drawn_by_the_seed():
    owned = [np.array([k]) for k in range(50)]
    drawn = [
        [int(r[0]) for r in split(Natural(), 10, np.zeros(50, int), seed, natural=owned)]
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 10
    assert drawn[0] == sorted(drawn[0])


def test_other_splits_pool_the_natural_rows():
    rows = split(Iid(), 2, np.zeros(9, int), natural=OWNED)
    assert sorted(np.concatenate(rows)) == [0, 1, 2, 5, 7, 8]
    assert len(split(Iid(), None, np.zeros(9, int), natural=OWNED)) == 3


@pytest.mark.parametrize("clients", [None, 1])
def test_pooled_is_one_client_with_everything(clients):
    (rows,) = split(Pooled(), clients, np.zeros(9, int), natural=OWNED)
    assert list(rows) == [0, 1, 2, 5, 7, 8]


def test_targets_can_be_sorted_but_not_stratified():
    targets = np.array([[0.5], [-1.0], [3.0], [2.0]])
    rows = split(Dirichlet(alpha=0.0), 2, targets, classes=None)
    assert [list(r) for r in rows] == [[0, 1], [2, 3]]
    with pytest.raises(JobError, match="dirichlet needs one label per example"):
        split(Dirichlet(alpha=1.0), 2, targets, classes=None)


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (Iid(), None, r"data\.clients: missing"),
        (Iid(), 1001, r"data\.clients: 1001 clients, but only 1000 .* client 1000 would have none"),
        (Natural(), None, "no natural clients"),
    ],
)
def test_what_cannot_be_dealt(partition, clients, message):
    with pytest.raises(JobError, match=message):
        split(partition, clients, LABELS)


def test_more_clients_than_there_are_owners():
    with pytest.raises(JobError, match=r"data\.clients is 5, but the data set has 3 clients"):
        split(Natural(), 5, np.zeros(9, int), natural=OWNED)


def test_an_empty_natural_client_is_named():
    with pytest.raises(DataError, match="client 1 of 2 has no example"):
        split(Natural(), None, np.zeros(9, int), natural=[np.array([0]), np.array([], int)])


@pytest.mark.parametrize(("client", "row"), [(0, -1), (2, 9)])
def test_natural_rows_outside_of_the_examples_are_named(client, row):
    natural = [np.arange(3), np.arange(0), np.array([4])]
    natural[client] = np.append(natural[client], row)
    message = f"client {client} of natural has row {row}, expected rows of the 9 training examples"
    with pytest.raises(JobError, match=message):
        with_checked_clients(dataset(np.zeros(9, int), natural=natural))


def with_tests(natural_tests, natural=((0, 1), (2,), (3,))):
    """A data set of 4 training and 6 test examples."""
    labels = torch.zeros(6)
    return replace(
        dataset(np.zeros(4, int), natural=natural),
        test=Examples(labels, labels),
        natural_tests=natural_tests,
    )


@pytest.mark.parametrize(
    ("natural_tests", "message"),
    [
        ([[0], [1, 6], []], "client 1 of natural_tests has row 6, expected rows of the 6 test ex"),
        ([[0], [-1, -2], []], "client 1 of natural_tests has row -1, expected rows of the 6 test"),
        ([[0, 1], [], [1]], "natural_tests has row 1 2 times, expected each test example of one"),
        ([[0], [1]], "natural_tests is of length 2, expected 3, the rows of each"),
        ([[0], [1], [2], [3]], "natural_tests is of length 4, expected 3, the rows of each"),
        ([[0.5], [1], [2]], "client 0 of natural_tests is .0.5., expected a list of its rows"),
    ],
)
def test_natural_tests_are_checked(natural_tests, message):
    with pytest.raises(JobError, match=message):
        with_checked_clients(with_tests(natural_tests))


def test_tests_without_natural_clients_are_refused():
    with pytest.raises(JobError, match="natural_tests is of length 1, expected None"):
        with_checked_clients(with_tests([[0]], natural=None))


def test_the_rows_of_natural_clients_become_integers():
    """An empty list alone would be an array of floats."""
    checked = with_checked_clients(with_tests([[], torch.tensor([4, 5]), np.array([1], np.uint8)]))
    for clients in (checked.natural, checked.natural_tests):
        assert all(rows.dtype == np.int64 for rows in clients)
    assert [rows.tolist() for rows in checked.natural] == [[0, 1], [2], [3]]
    kept = keep_natural_clients(Given(natural_clients=3), checked, 0)
    assert [rows.tolist() for rows in kept.natural_tests] == [[], [0, 1], [2]]


def test_a_file_names_the_client_of_each_row(tmp_path):
    path = tmp_path / "split.npy"
    np.save(path, np.array([1, 0, 255, 1], np.uint8))
    assert [list(r) for r in split(File(path=str(path)), None, [0, 0, 0, 0])] == [[1], [0, 3]]
    np.save(path, np.array([1, 0, -1, 1]))
    assert [list(r) for r in split(File(path=str(path)), 2, [0, 0, 0, 0])] == [[1], [0, 3]]


def test_255_is_a_client_like_any_other_in_a_wider_file(tmp_path):
    path = tmp_path / "split.npz"
    np.savez(path, a=np.arange(300), b=np.zeros(3))
    rows = split(File(path=str(path), key="a"), None, np.zeros(300, int))
    assert [list(r) for r in rows] == [[k] for k in range(300)]


@pytest.mark.parametrize(
    ("content", "clients", "message"),
    [
        (np.zeros(3, int), None, r"expected the client of each of the 4 training examples"),
        (np.zeros(4), None, "float64"),
        (np.array([0, 2, 0, 2]), None, "client 1 of 3 has no example"),
        (np.array([0, -2, 0, 1]), None, "counted from 0"),
        (np.array([-1, -1, -1, -1]), None, "counted from 0"),
        (np.array([0, 1, 0, 1]), 3, r"over 2 clients, but data\.clients is 3"),
    ],
)
def test_wrong_files(tmp_path, content, clients, message):
    np.save(tmp_path / "split.npy", content)
    with pytest.raises(DataError, match=message):
        split(File(path=str(tmp_path / "split.npy")), clients, [0, 0, 0, 0])


def test_a_missing_file_or_key(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        split(File(path=str(tmp_path / "none.npy")), None, [0])
    np.savez(tmp_path / "two.npz", a=[0], b=[0])
    with pytest.raises(DataError, match="name the array by key; found a, b"):
        split(File(path=str(tmp_path / "two.npz")), None, [0])
    with pytest.raises(DataError, match="found a, b, expected an array 'c'"):
        split(File(path=str(tmp_path / "two.npz"), key="c"), None, [0])


def test_the_published_split_of_cifar10():
    path = real("cifar_dirichlet_100clients.npz")
    partition = File(path=str(path), key="cifar10_alpha_0.50")
    rows = split(partition, 100, np.zeros(50_000, int))
    assert len(rows) == 100
    assert len(set(np.concatenate(rows))) == sum(len(r) for r in rows) <= 50_000


RANGES = RowRanges(np.array([0, 3, 4, 900]), np.array([3, 1, 6, 100]))


def test_consecutive_rows_stay_ranges():
    """The rows of many clients would take far more than where they begin and how many there are."""
    rows = [own.tolist() for own in RANGES]
    everyone = split(Natural(), None, LABELS, natural=RANGES)
    assert everyone is RANGES
    drawn = split(Natural(), 3, LABELS, natural=RANGES)
    assert isinstance(drawn, RowRanges)
    assert bytes_of(drawn) == 3 * 16
    same = split(Natural(), 3, LABELS, natural=list(RANGES))
    assert [own.tolist() for own in drawn] == [own.tolist() for own in same]
    assert bytes_of(same) == sum(8 * len(own) for own in same)
    (pooled,) = split(Pooled(), None, LABELS, natural=RANGES[::-1])
    assert pooled.tolist() == [row for own in rows for row in own]


def test_pooling_holds_the_rows_once():
    natural = RowRanges(np.arange(0, 10**6, 1000), np.full(1000, 1000))
    labels = np.zeros(10**6, dtype=np.int8)
    tracemalloc.start()
    split(Pooled(), None, labels, natural=natural)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 8e6 <= peak < 12e6


def test_a_range_without_rows_is_told():
    with pytest.raises(DataError, match="client 1 of 2 has no example"):
        split(Natural(), None, LABELS, natural=RowRanges(np.array([0, 5]), np.array([5, 0])))
