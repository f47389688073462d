"""``local.accumulate``: a step's batch in parts, with the gradient of the whole batch."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn

from hpcfl.errors import JobError
from hpcfl.job.load import load
from hpcfl.local.gradient import Gradient
from hpcfl.models.dropout import replace_dropout
from hpcfl.models.flat_vector import layout_of
from hpcfl.models.losses import LOSSES, loss_of
from hpcfl.start.components.choose_executor import choose_executor
from hpcfl.types import Batch
from tests.algorithms.play import parts, softmax_problem, tree
from tests.algorithms.trace import trace

PARTS = [2, 3, 7, 50]  # of 7 examples
DRAW = torch.Generator().manual_seed(0)
IMAGES = Batch(
    torch.randn(7, 2, 5, 5, generator=DRAW, dtype=torch.float64),
    torch.randint(3, (7,), generator=DRAW),
)
WORDS = torch.randint(1, 6, (7, 4), generator=DRAW)
# From no label to four of an example; the first parts of 3 and 7 have none.
REAL = torch.tensor([0, 0, 0, 1, 2, 4, 3]).unsqueeze(1) > torch.arange(4)
TEXTS = Batch(WORDS, WORDS.roll(1, 1) * REAL)


def images():
    layers = nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)
    return nn.Sequential(*layers).double()


def texts():
    return nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6)).double()


CASES = {
    "images": (images, LOSSES["cross_entropy"], IMAGES),
    "texts": (texts, loss_of("tokens", 0), TEXTS),
    "only padding": (texts, loss_of("tokens", 0), Batch(WORDS, 0 * WORDS)),
}


def point(model):
    return torch.randn(layout_of(model).total, generator=DRAW, dtype=torch.float64)


@pytest.mark.parametrize("count", PARTS)
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_the_whole_batch(name, clip, count):
    """And its loss; of texts each part counts by its labels without padding."""
    make, loss, batch = CASES[name]
    model = make()
    x = point(model)
    whole, found = (
        Gradient(model, loss, clip=clip, parts=each).stochastic(x, batch, 0) for each in (1, count)
    )
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    assert (whole[1].norm() == 0) == (name == "only padding")
    if clip is None:
        ends = []
        for each in (1, count):
            y = x.clone()
            Gradient(model, loss, parts=each).descend(y, batch, 0, 0.3, 0.1)
            ends.append(y)
        torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [3, 64])
@pytest.mark.parametrize("keys", [{}, {"momentum": 0.9, "clip": 0.5}], ids=["plain", "clipped"])
@pytest.mark.parametrize("name", ["fedavg", "fedsam"])
def test_rounds(tmp_path, name, keys, count):
    """Clients of 1 to 12 examples, whose batches may have fewer than parts."""
    paths = []
    for accumulate in (1, count):
        local = {"epochs": 2, "batch_size": 5, "lr": 0.3, "accumulate": accumulate, **keys}
        paths.append(trace(tree(tmp_path, softmax_problem(), {"name": name}, local=local)).xs)
    np.testing.assert_allclose(*paths, rtol=0, atol=1e-12)


class Watched(nn.Module):
    """Counts the activations that are alive when a forward pass begins."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(4, 5), nn.Linear(5, 3)
        self.seen, self.alive, self.widest = [], [], 0

    def forward(self, x):
        self.alive.append(sum(each() is not None for each in self.seen))
        hidden = self.first(x) * 2
        self.seen.append(weakref.ref(hidden))
        self.widest = max(self.widest, len(x))
        return self.out(hidden.tanh())


def test_one_part_is_in_memory_at_a_time():
    model = Watched().double()
    batch = Batch(torch.ones(7, 4, dtype=torch.float64), torch.zeros(7, dtype=torch.int64))
    Gradient(model, LOSSES["cross_entropy"], parts=3).stochastic(point(model), batch, 0)
    assert model.alive == [0, 0, 0]
    assert model.widest == 3


SIZES = []


class Recorded(nn.Module):
    """Keeps the sizes of the batches that it has computed."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.out = nn.Linear(*input_shape, outputs)

    def forward(self, x):
        SIZES.append(len(x))
        return self.out(x)


def test_a_job_computes_parts(tmp_path):
    model = {"name": "module", "of": f"{__name__}.Recorded"}
    described = parts(tmp_path, job(tmp_path, {"model": model}))
    (batch,) = described.population.clients.task(5, 0, steps=1).batches
    four = Batch(*(leaf.repeat_interleave(4, 0) for leaf in batch))
    gradient = described.gradient()
    SIZES.clear()
    gradient.stochastic(described.model.x0, four, 0)
    assert SIZES == [2, 2]


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.AlphaDropout(0.5)], ids=["ours", "torch's"])
def test_parts_have_dropout_masks_of_their_own(layer):
    """That follow from the step's seed alone."""
    model = nn.Sequential(nn.Linear(4, 40), layer, nn.Linear(40, 3)).double()
    replace_dropout(model)
    one = torch.ones(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    two = Batch(*(leaf.repeat_interleave(2, 0) for leaf in one))
    gradient, x = Gradient(model, LOSSES["cross_entropy"], parts=2), 0.1 * point(model)
    _, first = gradient.stochastic(x, Batch(*one), 8)
    _, both = gradient.stochastic(x, two, 8)
    assert (both - first).abs().max() > 1e-3  # equal if the second mask were the first
    assert torch.equal(gradient.stochastic(x, two, 8)[1], both)
    assert not torch.equal(gradient.stochastic(x, two, 9)[1], both)


class Normed(nn.Sequential):
    def __init__(self, input_shape, outputs):
        super().__init__(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, outputs))


NORMED = {"name": "module", "of": f"{__name__}.Normed"}
REFUSED = {
    "batch statistics": ({"model": NORMED}, "normalises by the statistics of its batch"),
    "forward": ({"algorithm": {"name": "fedntd"}}, "fedntd has a loss of its own, which may"),
    "terms": ({"algorithm": {"name": "fedlc"}}, "fedlc has a loss of its own, which may depend"),
    **{
        name: ({"executor": name}, f"found 2 with executor {name}, which computes whole batches")
        for name in ("block", "lanes", "triton")
    },
}


def job(folder, changes):
    local = {"steps": 2, "batch_size": 4, "lr": 0.1, "accumulate": 2}
    return {**tree(folder, softmax_problem(), {"name": "fedavg"}, local=local), **changes}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_in_one_line(tmp_path, why):
    changes, said = REFUSED[why]
    with pytest.raises(JobError) as refused:
        parts(tmp_path, job(tmp_path, changes))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_frozen_statistics_are_those_of_no_batch(tmp_path):
    parts(tmp_path, job(tmp_path, {"model": {**NORMED, "statistics": "frozen"}}))


def test_auto_takes_one_client_at_a_time(tmp_path):
    described = parts(tmp_path, job(tmp_path, {"executor": "auto"}))
    chosen, (line,) = choose_executor(described, None)
    assert chosen.job.executor == "sequential"
    assert line == "executor: sequential (auto: local.accumulate takes a batch in parts)"


def test_more_parts_than_masks_are_refused(tmp_path):
    local = {"lr": 0.1, "accumulate": 1025}
    with pytest.raises(JobError, match="found 1025, expected a number of at most 1024"):
        load(tree(tmp_path, softmax_problem(), {"name": "fedavg"}, local=local))
