"""Every kernel, and its gradients, are those of torch for each client alone, in float64."""

import pytest
import torch
from torch.nn import functional


def parameters(generator, clients, *shapes):
    """Of each client, views of its flat vector, as in a block."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = torch.randn(clients, sum(sizes), generator=generator)
    pieces = flat.split(sizes, 1)
    return [piece.view(clients, *shape) for piece, shape in zip(pieces, shapes, strict=True)]


def check(function, reference, tensors, device, *, rtol=1e-4, atol=2e-4):
    """Outputs and gradients of ``function``, against ``reference`` of each client in float64."""
    mine = [tensor.to(device).requires_grad_() for tensor in tensors]
    wide = [tensor.double().requires_grad_() for tensor in tensors]
    found = function(*mine)
    clients = [reference(*(tensor[k] for tensor in wide)) for k in range(len(wide[0]))]
    wanted = [torch.stack(parts) for parts in zip(*clients, strict=True)]
    generator = torch.Generator().manual_seed(9)
    ups = [torch.randn(one.shape, generator=generator) for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=rtol, atol=atol)
    grads = torch.autograd.grad(found, mine, [up.to(device) for up in ups])
    expected = torch.autograd.grad(wanted, wide, [up.double() for up in ups])
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=10 * rtol, atol=10 * atol)
    return found, grads


CONVOLUTIONS = {  # clients, examples, image, channels, outputs, kernel, stride, padding, bias
    "lenet-1": (3, 2, (12, 12), 3, 8, (5, 5), (1, 1), (0, 0), True),
    "resnet20-1": (2, 2, (8, 8), 16, 16, (3, 3), (1, 1), (1, 1), False),
    "halves": (2, 2, (8, 8), 16, 32, (3, 3), (2, 2), (1, 1), False),
    "wide": (1, 1, (5, 5), 70, 66, (3, 3), (1, 1), (1, 1), True),
    "nothing-fits": (2, 3, (7, 5), 5, 7, (3, 2), (2, 1), (1, 0), True),
    "one-output": (2, 1, (9, 9), 4, 1, (1, 1), (2, 2), (0, 0), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, device):
    from hpcfl.local.triton_kernels.conv import convolution

    clients, examples, image, channels, outputs, kernel, stride, padding, bias = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(clients, examples, channels, *image, generator=generator)
    own = parameters(generator, clients, (outputs, channels, *kernel), (outputs,))
    check(
        lambda x, w, b=None: [convolution(x, w, b, stride, padding)],
        lambda x, w, b=None: [functional.conv2d(x, w, b, stride, padding)],
        [images, *own[: 1 + bias]],
        device,
    )


@pytest.mark.parametrize("shape", [(2, 2, 5, 8, 8), (1, 3, 2, 5, 7), (2, 1, 1, 2, 3)])
def test_pooled_relu(shape, device):
    from hpcfl.local.triton_kernels.pool import pooled_relu

    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    images[images > 1] = 1.0  # several largest ones: the first has the gradient
    check(
        lambda x: [pooled_relu(x)],
        lambda x: [functional.relu(functional.max_pool2d(x, 2))],
        [images],
        device,
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_update(decay, device):
    """Of parameters and gradients in any order of memory; clients that have finished stay."""
    from hpcfl.local.triton_kernels.update import descend

    generator = torch.Generator().manual_seed(0)
    shapes = [(7,), (5, 3), (600, 2), (2, 3, 2, 2)]
    views = [view.to(device) for view in parameters(generator, 4, *shapes)]
    grads = [torch.randn(view.shape, generator=generator, device="cpu") for view in views]
    grads[1] = grads[1].mT.contiguous().mT  # as of a dense layer's products
    grads[2] = grads[2][:, :1].expand(grads[2].shape)
    grads[3] = grads[3].contiguous(memory_format=torch.channels_last_3d)
    grads[0][1] = torch.nan  # of a client that has finished
    rates, active = torch.tensor([0.1, 0.2, 0.3, 0.0]), torch.tensor([True, False, True, True])
    before = [view.clone() for view in views]
    descend(views, [g.to(device) for g in grads], rates.to(device), active.to(device), decay)
    for view, old, grad in zip(views, before, grads, strict=True):
        old, grad = old.cpu().double(), grad.double()
        rate = (rates * active).view(-1, *[1] * (old.dim() - 1))
        torch.testing.assert_close(
            view.cpu().double()[active], (old - rate * (grad + decay * old))[active]
        )
        assert torch.equal(view.cpu().double()[~active], old[~active])


@pytest.mark.parametrize("last", [True, False])
def test_images_in_any_order_of_memory(last, device):
    from hpcfl.local.triton_kernels.conv import convolution

    images = torch.randn(2, 2, 4, 6, 6, device=device)
    kernels = torch.randn(2, 4, 4, 3, 3, device=device)
    if last:
        images = images.movedim(2, -1).contiguous().movedim(-1, 2)
    found = convolution(images, kernels, None, (1, 1), (1, 1))
    assert found.movedim(2, -1).is_contiguous()
    for one, x, w in zip(found, images, kernels, strict=True):
        torch.testing.assert_close(one, functional.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-4)


def test_bfloat16_is_summed_in_float32(device):
    from hpcfl.local.triton_kernels.conv import convolution

    images = torch.randn(2, 2, 16, 8, 8).bfloat16()
    kernels = torch.randn(2, 16, 16, 3, 3)
    found = convolution(images.to(device), kernels.to(device), None, (1, 1), (1, 1)).cpu()
    assert found.dtype == torch.bfloat16
    for one, x, w in zip(found, images, kernels.bfloat16(), strict=True):
        wanted = functional.conv2d(x.double(), w.double(), padding=1)
        # The interpreter cuts off digits, where a GPU rounds to the nearest.
        torch.testing.assert_close(one.double(), wanted, rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize(("relu", "residual"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 2, 6, 4, 5), 2), ((2, 1, 2, 70, 64), 1), ((3, 1, 5, 3), 5)]
)
def test_group_norm(shape, groups, relu, residual, device):
    from hpcfl.local.triton_kernels.group_norm import group_norm

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(shape, generator=generator)
    own = parameters(generator, shape[0], (shape[2],), (shape[2],))
    others = [torch.randn(shape, generator=generator)] if residual else []

    def reference(x, w, b, r=0.0):
        found = functional.group_norm(x, groups, w, b) + r
        return [functional.relu(found) if relu else found]

    check(
        lambda x, w, b, r=None: [group_norm(x, w, b, groups, 1e-5, r, relu=relu)],
        reference,
        [images, *own, *others],
        device,
    )


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 18, 2, 17)])
def test_recurrence(shape, device):
    from hpcfl.local.triton_kernels.lstm import recurrence

    clients, examples, length, hidden = shape
    generator = torch.Generator().manual_seed(0)
    gates = torch.randn(clients, length, examples, 4 * hidden, generator=generator)
    h, c = torch.randn(2, clients, examples, hidden, generator=generator)
    (weight,) = parameters(generator, clients, (4 * hidden, hidden))

    def reference(gates, h, c, weight):
        states = []
        for gate_inputs in gates:
            i, f, g, o = (gate_inputs + h @ weight.T).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states), c

    check(recurrence, reference, [gates, h, c, weight], device)


def conv_of(x, w, b):
    from hpcfl.local.triton_kernels.conv import convolution

    return [convolution(x, w, b, (1, 1), (1, 1))]


def norm_of(x, w, b, residual):
    from hpcfl.local.triton_kernels.group_norm import group_norm

    return [group_norm(x, w, b, 1, 1e-5, residual, relu=True)]


def recurrence_of(gates, h, c, w):
    from hpcfl.local.triton_kernels.lstm import recurrence

    return recurrence(gates, h, c, w)


def pool_of(x):
    from hpcfl.local.triton_kernels.pool import pooled_relu

    return [pooled_relu(x)]


KINDS = pytest.mark.parametrize(  # the shapes of one client's tensors
    ("function", "shapes"),
    [
        (conv_of, [(2, 5, 4, 4), (7, 5, 3, 3), (7,)]),
        (conv_of, [(2, 5, 4, 4), (7, 5, 1, 1), (7,)]),
        (norm_of, [(3, 5, 4, 4), (5,), (5,), (3, 5, 4, 4)]),
        (recurrence_of, [(3, 2, 20), (2, 5), (2, 5), (20, 5)]),
        (pool_of, [(2, 5, 4, 6)]),
    ],
)


@KINDS
def test_a_clients_bits_do_not_depend_on_its_slot(function, shapes, device):
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(4, *shape, generator=generator).to(device) for shape in shapes]
    order, results = [2, 0, 3, 1], []
    for slots in ([0, 1, 2, 3], order):
        leaves = [tensor[slots].requires_grad_() for tensor in tensors]
        found = function(*leaves)
        whole = sum(one.square().sum((*range(1, one.dim()),)) for one in found).sum()
        results.append([*found, *torch.autograd.grad(whole, leaves)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one[order], other)


class Noted:
    """A kernel that notes the addresses of the tensors that it is given."""

    def __init__(self, kernel, addresses):
        self.kernel, self.addresses = kernel, addresses

    def __getitem__(self, grid):
        def launch(*args, **constants):
            self.addresses += [t.data_ptr() for t in args if isinstance(t, torch.Tensor)]
            self.kernel[grid](*args, **constants)

        return launch


@KINDS
def test_kernels_are_given_aligned_tensors(function, shapes, device, monkeypatch):
    """In every slot and in a CUDA graph: else Triton would compile others, with other sums."""
    from triton.runtime.jit import KernelInterface

    from hpcfl.local.triton_kernels import conv, group_norm, lstm, pool

    addresses = []
    for module in (conv, group_norm, lstm, pool):
        for name, kernel in [*vars(module).items()]:
            if isinstance(kernel, KernelInterface) and not name.startswith("_"):
                monkeypatch.setattr(module, name, Noted(kernel, addresses))
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(1, *shape, generator=generator).to(device) for shape in shapes]
    results = []
    for offset in (0, 1):
        leaves = [beginning_at(offset, tensor).requires_grad_() for tensor in tensors]
        assert all((leaf.data_ptr() % 16 == 0) == (offset == 0) for leaf in leaves)
        found = function(*leaves)
        ups = [beginning_at(offset, torch.ones_like(one)) for one in found]
        results.append([*found, *torch.autograd.grad(found, leaves, ups)])
    assert addresses
    assert not any(address % 16 for address in addresses)
    assert all(map(torch.equal, *results))


def beginning_at(offset, tensor):
    """The same numbers and order of memory, so many elements after an aligned address."""
    room = tensor.new_empty(offset + tensor.numel())
    return room[offset:].as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def test_the_relu_of_nan_is_nan(device):
    x = torch.ones(1, 1, 2, 2, 2, device=device)
    x[..., 0, 0] = torch.nan
    w, b = torch.ones(2, 1, 2, device=device).requires_grad_()
    (found,) = norm_of(x, w, b, torch.zeros_like(x))
    assert found.isnan().all()
    assert torch.autograd.grad(found.sum(), w)[0].isnan().all()


def test_float64_is_refused(device):
    images, kernels = torch.zeros(1, 1, 1, 4, 4).double(), torch.zeros(1, 1, 1, 3, 3).double()
    with pytest.raises(NotImplementedError, match="take float32 and bfloat16, not float64"):
        conv_of(images.to(device), kernels.to(device), None)
