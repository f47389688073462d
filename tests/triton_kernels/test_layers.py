"""Gradients of whole models by Triton's kernels are those of blocks, up to rounding."""

import pytest
import torch
from torch import nn

from hpcfl.clients.padded_batches import PaddedBatch
from hpcfl.local.block_gradients import BlockGradients
from hpcfl.models.char_lstm import CharLstm
from hpcfl.models.cnn_pfl import CnnPfl
from hpcfl.models.dropout import replace_dropout
from hpcfl.models.flat_vector import parameters
from hpcfl.models.fused import norm_relu
from hpcfl.models.lenet import LeNet
from hpcfl.models.losses import LOSSES
from hpcfl.models.resnet20 import Block

torch.set_num_threads(1)


class Halves:
    """The part of ResNet-20 that halves the images, as a model of its own."""

    def build(self, shape, outputs):
        return nn.Sequential(Block(shape[0], 8), nn.Flatten(), nn.Linear(32, outputs))


MODELS = {  # the model, the shape of an example
    "lenet": (LeNet(), (3, 16, 16)),
    "cnn_pfl": (CnnPfl(), (3, 8, 8)),
    "char_lstm": (CharLstm(), (4,)),
    "resnet20": (Halves(), (4, 4, 4)),
}
CLIENTS, EXAMPLES = 2, 2


def gradients_of(model, shape, convolutions, device, **settings):
    """Losses [K] and gradients [K, P] of two clients, the second with padding in its batch."""
    torch.manual_seed(0)
    replace_dropout(model)
    x = parameters(model.cpu())  # where the points are drawn, also of a model that was on a GPU
    points = torch.stack([x + 0.02 * torch.randn_like(x) for _ in range(CLIENTS)])
    first = (CLIENTS, EXAMPLES)
    inputs = torch.randn(*first, *shape) if len(shape) > 1 else torch.randint(0, 30, (*first, 4))
    batches = PaddedBatch(
        inputs, torch.randint(0, 10, first), torch.tensor([[1.0, 1], [1, 0]]), torch.arange(CLIENTS)
    )
    gradients = BlockGradients(
        model.to(device), LOSSES["cross_entropy"], convolutions, clip=0.5, **settings
    )
    gradients.on_gpu = True  # also in the interpreter
    return gradients(points.to(device), PaddedBatch(*(leaf.to(device) for leaf in batches)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_layer(name, device, tf32):
    config, shape = MODELS[name]
    results = []
    for convolutions in ("products", "triton"):
        torch.manual_seed(1)
        model = config.build(shape, 30 if name == "char_lstm" else 10)
        results.append(gradients_of(model, shape, convolutions, device))
    require_close(*results, device)


def test_the_kernels_are_called(device, tf32, monkeypatch):
    """Else the test above would compare products with products."""
    from hpcfl.local.triton_kernels import conv, group_norm, lstm

    called = []
    for module, name in ((conv, "convolution"), (group_norm, "group_norm"), (lstm, "recurrence")):
        function = getattr(module, name)

        def counted(*args, name=name, function=function, **how):
            called.append(name + " and relu" * how.get("relu", False))
            return function(*args, **how)

        monkeypatch.setattr(module, name, counted)

    class All(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)
            self.lstm, self.fc = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 10)

        def forward(self, images):
            z = self.norm(norm_relu(self.norm, self.conv(images))).flatten(2).transpose(1, 2)
            return self.fc(self.lstm(z)[0][:, -1])

    gradients_of(All(), (1, 4, 4), "triton", device)
    assert called == ["convolution", "group_norm and relu", "group_norm", "recurrence"]
    called.clear()
    torch.backends.cuda.matmul.allow_tf32 = False
    gradients_of(All(), (1, 4, 4), "triton", device)
    assert called == ["convolution", "group_norm and relu", "group_norm"]


class Attention(nn.Module):
    """Of the pixels, by PyTorch's layer."""

    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, images):
        pixels = images.flatten(2).transpose(1, 2)
        found, _ = self.heads(pixels, pixels, pixels, need_weights=False)
        return found.transpose(1, 2).reshape(images.shape)


class NormRelu(nn.Module):
    """A normalisation without weights, or a batch normalisation, with a residual and a relu."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, images):
        return norm_relu(self.norm, images, images)


class Beside(nn.Module):
    """The sum of layers of the same images."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, images):
        return sum(layer(images) for layer in self.layers)


# On a GPU another kernel computes attention.
@pytest.mark.filterwarnings("ignore:.*_scaled_dot_product_flash_attention_for_cpu")
def test_other_layers_between_kernels_are_those_of_blocks(device, tf32):
    """Of images channels last in memory, which some functions refuse inside vmap."""
    torch.manual_seed(0)
    others = Beside(
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4).eval(),
        nn.InstanceNorm2d(4),
        nn.GroupNorm(2, 4, affine=False),
        NormRelu(nn.GroupNorm(2, 4, affine=False)),
        NormRelu(nn.BatchNorm2d(4)),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.ConvTranspose2d(4, 4, 3, padding=1),
        nn.AdaptiveAvgPool2d(4),
        Attention(),
    )
    first, last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
    model = nn.Sequential(first, others, last, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4, 10))
    results = [gradients_of(model, (3, 4, 4), how, device) for how in ("products", "triton")]
    require_close(*results, device)


def require_close(found, expected, device):
    """Compare losses and gradients up to rounding."""
    # tf32 there, in which the largest of some pixels may be another.
    rounding = 1e-6 if device == "cpu" else 3e-2
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= rounding * other.abs().max()


def test_bf16(device, tf32):
    """Convolutions in bfloat16, normalisation and its outputs in float32."""

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 10)

        def forward(self, images):
            z = self.conv(images)
            assert z.dtype == torch.bfloat16
            z = self.norm(z)
            assert z.dtype == torch.float32
            return self.fc(z.relu().mean((2, 3)))

    results = []
    for convolutions in ("products", "triton"):
        torch.manual_seed(1)
        results.append(gradients_of(Small(), (3, 4, 4), convolutions, device, bf16=True))
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()
