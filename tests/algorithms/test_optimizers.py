"""The optimisers of local steps against torch's, and Muon against its formula written out."""

import numpy as np
import pytest
import torch
from torch.func import vmap

from hpcfl.algorithms.layout import Layout
from hpcfl.algorithms.optim import Adam, AdamW, Descent, Muon, Sgd
from hpcfl.algorithms.optim.muon import newton_schulz as newton_schulz_of

LAYOUT = Layout(("a.weight", "a.bias", "b.weight"), ((5, 3), (5,), (2, 3, 2)))
STEPS = 9
LR, DECAY = 0.03, 0.07


def gradients(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = STEPS, LAYOUT.total
    return torch.randn(shape, generator=generator, dtype=torch.float64).unbind()


def ours(optimizer, decay=DECAY):
    descent, y = Descent(optimizer, decay, LAYOUT), gradients(1)[0]
    state = descent.init(y)
    for d in gradients():
        along, state = descent.step(d + y, y, state)
        y = y - LR * along
    return y


def torchs(make):
    y = torch.nn.Parameter(gradients(1)[0].clone())
    optimizer = make([y])
    for d in gradients():
        y.grad = (d + y).detach()
        optimizer.step()
    return y.detach()


PAIRS = {
    "sgd": (Sgd(), lambda p: torch.optim.SGD(p, LR, weight_decay=DECAY)),
    "momentum": (
        Sgd(momentum=0.9),
        lambda p: torch.optim.SGD(p, LR, momentum=0.9, weight_decay=DECAY),
    ),
    "nesterov": (
        Sgd(momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, LR, momentum=0.9, nesterov=True, weight_decay=DECAY),
    ),
    "adam": (Adam(), lambda p: torch.optim.Adam(p, LR, weight_decay=DECAY)),
    "adamw": (AdamW(), lambda p: torch.optim.AdamW(p, LR, weight_decay=DECAY)),
    "adamw-keys": (
        AdamW(b1=0.5, b2=0.7, eps=0.1),
        lambda p: torch.optim.AdamW(p, LR, betas=(0.5, 0.7), eps=0.1, weight_decay=DECAY),
    ),
}


@pytest.mark.parametrize(("own", "make"), PAIRS.values(), ids=PAIRS)
def test_the_same_as_torchs(own, make):
    torch.testing.assert_close(ours(own), torchs(make), rtol=0, atol=1e-14)
    assert (ours(own) - ours(own, decay=0.0)).abs().max() > 1e-3


def newton_schulz(q):
    x = q / (np.linalg.norm(q) + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.T if tall else x


def muon(beta, nesterov, matrix_lr):
    """Written for one list of arrays, with loops."""
    y = [view.numpy().copy() for view in LAYOUT.views(gradients(1)[0])]
    momentum = [np.zeros_like(part) for part in y]
    first, second = [np.zeros_like(part) for part in y], [np.zeros_like(part) for part in y]
    for k, d in enumerate(gradients(), 1):
        for i, g in enumerate(part.numpy() for part in LAYOUT.views(d)):
            g = g + y[i]
            if g.ndim == 1:
                first[i] = 0.9 * first[i] + 0.1 * g
                second[i] = 0.95 * second[i] + 0.05 * g**2
                along = first[i] / (1 - 0.9**k) / (np.sqrt(second[i] / (1 - 0.95**k)) + 1e-10)
            else:
                momentum[i] = beta * momentum[i] + (1 - beta) * g
                q = (1 - beta) * g + beta * momentum[i] if nesterov else momentum[i]
                matrix = q.reshape(len(q), -1)
                ratio = max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5
                along = matrix_lr * ratio * newton_schulz(matrix).reshape(g.shape)
            y[i] = y[i] - LR * (along + DECAY * y[i])
    return torch.cat([torch.from_numpy(part).reshape(-1) for part in y])


@pytest.mark.parametrize("keys", [(0.95, True, 1.0), (0.6, False, 3.0)])
def test_muon_is_its_formula(keys):
    beta, nesterov, matrix_lr = keys
    own = ours(Muon(beta=beta, nesterov=nesterov, matrix_lr=matrix_lr))
    torch.testing.assert_close(own, muon(*keys), rtol=0, atol=1e-13)


def test_newton_schulz_makes_singular_values_near_one():
    matrix = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    values = torch.linalg.svdvals(newton_schulz_of(matrix))
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(10, 85), (33, 7), (6, 1, 5, 5), (7, 333)])
def test_a_matrix_has_the_same_bits_in_every_slot_of_a_block(shape):
    """Shapes whose rows do not fill whole vectors of the processor."""
    generator = torch.Generator().manual_seed(0)
    one, *others = torch.randn((8, *shape), generator=generator).unbind()
    found = [
        vmap(newton_schulz_of)(torch.stack([*others[:slot], one, *others[slot:]]))[slot]
        for slot in range(8)
    ]
    assert all(torch.equal(found[0], other) for other in found[1:])
