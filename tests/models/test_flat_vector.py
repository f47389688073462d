"""Lines of images: ``flatten``'s, and a gradient in the images' own format."""

import pytest
import torch

from hpcfl.models.flatten import flat


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_lines_and_gradients_are_flatten_s(layout):
    seen = []
    images = torch.randn(2, 3, 4, 5).to(memory_format=layout).requires_grad_()
    images.register_hook(seen.append)
    factors = torch.randn(2, 60)
    lines = flat(images)
    assert torch.equal(lines, images.flatten(1))
    (gradient,) = torch.autograd.grad((lines * factors).sum(), images)
    assert torch.equal(gradient, factors.view(2, 3, 4, 5))
    assert seen[0].is_contiguous(memory_format=layout)


@pytest.mark.parametrize("at", [0, 2])
def test_of_several_clients(at):
    images = torch.randn(4, 2, 3, 5, 5)
    found = torch.func.vmap(flat, in_dims=at)(images.movedim(0, at))
    assert torch.equal(found, images.flatten(2))
