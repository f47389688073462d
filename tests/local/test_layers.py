"""What a GPU needs so that a client's bits do not depend on its place in a block, on the CPU."""

import pytest
import torch
from torch.func import vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hpcfl.local.layers import PAD_MULTIPLE, LaneLayers, VmapLayers, VmapReductions, aligned


def test_rows_begin_at_a_multiple_of_the_width():
    vectors = torch.randn(3, PAD_MULTIPLE + 1)
    padded = aligned(vectors)
    assert padded.shape == (3, 2 * PAD_MULTIPLE)
    assert torch.equal(padded[:, : PAD_MULTIPLE + 1], vectors)
    assert not padded[:, PAD_MULTIPLE + 1 :].any()
    assert aligned(padded) is padded


@pytest.mark.parametrize(
    "reduce",
    [
        lambda v: v.norm(),
        lambda v: v.norm(1),
        lambda v: torch.linalg.vector_norm(v, ord=-torch.inf),
        lambda v: torch.linalg.vector_norm(v, 3.0, keepdim=True),
        lambda v: v.sum(),
        lambda v: v.sum(0),
        lambda v: torch.sum(v, dtype=torch.float64),
        lambda v: v.mean(),
        lambda v: torch.mean(v, dim=-1),
        lambda v: v.dot(2 * v),
        lambda v: torch.inner(v, v),
        lambda v: v.view(3, -1).sum(1),  # no vector: as it is
    ],
)
def test_a_reduction_of_padded_vectors_has_the_value_of_the_plain_one(reduce):
    vectors = torch.randn(4, 201, dtype=torch.float64) + 3
    with VmapReductions():
        found = vmap(reduce)(vectors)
    torch.testing.assert_close(found, torch.stack([reduce(vector) for vector in vectors]))


def test_a_norm_is_taken_of_rows_that_begin_alike():
    taken = []

    class Noted(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.norm:
                taken.append(len(args[0]))
            return func(*args, **(kwargs or {}))

    with Noted(), VmapReductions():
        vmap(torch.Tensor.norm)(torch.randn(2, 201))
    assert taken == [4 * PAD_MULTIPLE]


def test_an_embedding_of_padded_places_has_the_plain_values_and_gradients():
    table = torch.randn(3, 11, 5, dtype=torch.float64, requires_grad=True)
    texts = torch.randint(11, (3, 7, 6))
    plain = torch.stack([functional.embedding(*pair) for pair in zip(texts, table, strict=True)])
    with VmapLayers("grouped", pad=False):
        found = vmap(functional.embedding)(texts, table)
    assert torch.equal(found, plain)
    weights = torch.randn_like(plain)
    grads = [torch.autograd.grad((part * weights).sum(), table)[0] for part in (found, plain)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(2, 3, 5, 5), (3, 5, 5)])
def test_convolutions_in_lanes_take_images_with_a_batch_and_without(shape):
    images, kernels = torch.randn(shape), torch.randn(4, 3, 3, 3)
    with LaneLayers():
        found = functional.conv2d(images, kernels, padding=1)
    torch.testing.assert_close(found, functional.conv2d(images, kernels, padding=1))
