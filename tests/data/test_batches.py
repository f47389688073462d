import numpy as np
import pytest

from hpcfl.data.batches import examples_in_batches, order, steps_of_passes


def drawn(examples, seed=0, *, batch_size=None, epochs=None, steps=None, drop_last=False):
    if steps is None:
        steps = steps_of_passes(examples, batch_size=batch_size, epochs=epochs, drop_last=drop_last)
    batches = list(
        order(
            examples,
            batch_size=batch_size,
            steps=steps,
            drop_last=drop_last,
            generator=lambda: np.random.default_rng(seed),
        )
    )
    assert len(batches) == steps
    return batches


@pytest.mark.parametrize(
    ("examples", "batch_size", "epochs", "drop_last", "expected"),
    [
        (500, 64, 1, False, 8),  # the FedHBM paper's J on CIFAR-10, 100 clients
        (100, 64, 1, False, 2),  # and with 500 clients
        (500, 64, 3, False, 24),
        (500, 64, 1, True, 7),
        (500, 50, 5, True, 50),
        (3, 64, 2, True, 2),  # drop_last keeps at least one batch a pass
        (10, None, 4, False, 4),
    ],
)
def test_steps(examples, batch_size, epochs, drop_last, expected):
    how = {"batch_size": batch_size, "epochs": epochs, "drop_last": drop_last}
    assert steps_of_passes(examples, **how) == expected


def test_each_pass_holds_every_example_once_and_is_shuffled_anew():
    batches = drawn(10, batch_size=4, epochs=2)
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(batches[:3]), np.concatenate(batches[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, np.arange(10))


def test_batches_are_slices_of_the_generators_permutations():
    generator = np.random.default_rng(7)
    first, second = generator.permutation(5), generator.permutation(5)
    batches = drawn(5, seed=7, batch_size=2, steps=5)
    expected = [first[:2], first[2:4], first[4:], second[:2], second[2:4]]
    assert all(np.array_equal(a, b) for a, b in zip(batches, expected, strict=True))


def test_drop_last_leaves_the_partial_batch_out_but_keeps_one():
    assert [len(batch) for batch in drawn(10, batch_size=4, epochs=2, drop_last=True)] == [4] * 4
    assert [len(batch) for batch in drawn(10, batch_size=4, steps=3, drop_last=True)] == [4] * 3
    assert [len(batch) for batch in drawn(3, batch_size=4, epochs=2, drop_last=True)] == [3, 3]


@pytest.mark.parametrize("batch_size", [None, 5, 9])
def test_a_full_batch_is_not_shuffled(batch_size):
    batches = drawn(5, batch_size=batch_size, steps=3)
    assert all(np.array_equal(batch, np.arange(5)) for batch in batches)


def test_no_step_at_all():
    assert drawn(5, batch_size=2, epochs=0) == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 10, 64])
@pytest.mark.parametrize("work", [1, 2, 4, 9, 20])
def test_the_examples_in_all_batches(batch_size, work, drop_last):
    """As many as the batches hold, whatever passes and partial batches the steps go through."""
    for examples in (1, 3, 10, 21):
        how = {"batch_size": batch_size, "steps": work, "drop_last": drop_last}
        assert examples_in_batches(examples, **how) == sum(map(len, drawn(examples, **how)))
