"""Dropout's masks: SplitMix64's numbers, whoever asks, in whatever company."""

import pytest
import torch
from torch import nn

from hpcfl.models.dropout import Dropout, _mixed, dropouts, replace_dropout

WORD = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(state):
    """The number that follows a state, by whole numbers."""
    z = (state + GOLDEN) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def sixteens(word):
    """Its four signed numbers of 16 bits, lowest first."""
    parts = [(word >> shift) % 65536 for shift in (0, 16, 32, 48)]
    return [part - 65536 if part >= 32768 else part for part in parts]


def begun(p, seed=5, layer=0, examples=None):
    made = Dropout(nn.Dropout(p), layer)
    made.begin(torch.tensor(seed), examples)
    return made


def test_published_numbers():
    """Those that implementations of SplitMix64 are compared by, for the seed 1234567."""
    states = [(1234567 + n * GOLDEN + 2**63) % WORD - 2**63 for n in (1, 2, 3)]
    found = _mixed(torch.tensor(states)).tolist()
    assert [n % WORD for n in found] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
    ]  # fmt: skip


@pytest.mark.parametrize(("layer", "call"), [(0, 0), (3, 0), (0, 2), (2, 1)])
def test_masks_by_whole_numbers(layer, call):
    seed, made = 2**63 - 7, begun(0.25, 2**63 - 7, layer)
    for _ in range(call):
        made(torch.ones(1))
    start = seed + ((layer << 48) + (call << 36)) * GOLDEN
    words = [splitmix64((start + n * GOLDEN) % WORD) for n in range(2)]
    levels = [level for word in words for level in sixteens(word)][:7]
    expected = [4 / 3 if level >= -16384 else 0.0 for level in levels]
    assert made(torch.ones(7, dtype=torch.float64)).tolist() == expected


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_so_many_are_dropped_and_the_mean_stays(p):
    count = 400_000
    dropped = begun(p)(torch.ones(count, dtype=torch.float64))
    assert abs(float((dropped == 0).double().mean()) - p) < 5 * (p * (1 - p) / count) ** 0.5
    assert float(dropped.max()) == pytest.approx(1 / (1 - p), rel=2e-5)


def test_the_ends():
    ones = torch.ones(8)
    assert torch.equal(begun(0.0)(ones), ones)
    assert not begun(1.0)(ones).any()
    assert torch.equal(begun(0.5).eval()(ones), ones)


def test_every_seed_layer_and_call_has_a_mask_of_its_own():
    ones, twice = torch.ones(64), begun(0.5)
    masks = [twice(ones), twice(ones), begun(0.5, layer=1)(ones), begun(0.5, seed=6)(ones)]
    assert len({tuple(mask.tolist()) for mask in masks}) == 4
    twice.begin(torch.tensor(5))
    assert torch.equal(twice(ones), masks[0])


def test_an_example_s_mask_does_not_depend_on_those_behind_it():
    wide, narrow = (begun(0.5)(torch.ones(n, 3, 5)) for n in (7, 4))
    assert torch.equal(wide[:4], narrow)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_is_dropped_alike(dtype):
    given = torch.ones(40, dtype=dtype, requires_grad=True)
    dropped = begun(0.5)(given)
    dropped.sum().backward()
    assert dropped.dtype == dtype
    assert torch.equal(given.grad, dropped.detach())


def test_many_clients_draw_as_each_alone():
    seeds = torch.tensor([4, 2**62 + 1, 4])

    def one(seed, rows):
        made = Dropout(nn.Dropout(0.5), 1)
        made.begin(seed, 6)
        return made(rows)

    together = torch.func.vmap(one)(seeds, torch.ones(3, 6, 5))
    for mask, seed in zip(together, seeds, strict=True):
        assert torch.equal(mask, one(seed, torch.ones(6, 5)))


def test_a_tensor_whose_first_dimension_is_not_the_batch_is_refused_where_it_matters():
    with pytest.raises(NotImplementedError, match="whose first dimension is not the batch"):
        begun(0.5, examples=4)(torch.ones(3, 4))


def test_in_place():
    given = torch.ones(64)
    made = Dropout(nn.Dropout(0.5, inplace=True), 0)
    assert made(given) is given
    assert torch.equal(given, begun(0.5, seed=0)(torch.ones(64)))
    assert not Dropout(nn.Dropout(0.5).eval(), 0).training


def test_a_module_that_stands_in_several_places_stays_one():
    shared = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(2, 2), shared, nn.Sequential(shared), shared)
    replace_dropout(model)
    (own,) = dropouts(model)
    assert model[1] is model[2][0] is model[3] is own


def test_it_stands_in_for_torch_s_wherever_that_is():
    inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2))
    model = nn.Sequential(nn.Dropout(0.5), inner, nn.Dropout1d(0.5))
    before = list(model.state_dict())
    replace_dropout(model)
    assert [drop.p for drop in dropouts(model)] == [0.5, 0.2]
    assert list(model.state_dict()) == before
    assert isinstance(model[2], nn.Dropout1d)
    first, second = dropouts(model)
    assert not torch.equal(first(torch.ones(64)) > 0, second(torch.ones(64)) > 0)
