"""Gradients of several clients in one pass are each client's own, for every kind of layer."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpcfl.clients.padded_batches import PaddedBatches
from hpcfl.clients.task import ClientTask
from hpcfl.local.block_gradients import BlockGradients
from hpcfl.local.gradient import Gradient
from hpcfl.local.layers import VmapLayers, stacked
from hpcfl.models.char_lstm import CharLstm
from hpcfl.models.cnn_pfl import CnnPfl
from hpcfl.models.dropout import dropouts, replace_dropout
from hpcfl.models.flat_vector import parameters
from hpcfl.models.lenet import LeNet
from hpcfl.models.linear import Linear
from hpcfl.models.losses import LOSSES, loss_of
from hpcfl.models.mobilenet_v2 import MobileNetV2
from hpcfl.models.resnet18 import ResNet18
from hpcfl.models.resnet20 import ResNet20
from hpcfl.models.word_lstm import WordLstm
from hpcfl.types import Batch
from tests.long_form import long_form

torch.set_num_threads(1)

SIZES = (4, 2, 3)  # examples of the three clients' batches
WORDS = WordLstm(embedded=8, hidden=10, projected=6)
LAST = WordLstm(embedded=8, hidden=10, projected=6, predict="last")


def images(n, side=32):
    pixels = torch.randn(n, 3, side, side).to(memory_format=torch.channels_last)
    return Batch(pixels, torch.randint(0, 10, (n,)))


def texts(n):
    return Batch(torch.randint(1, 30, (n, 7)), torch.randint(0, 30, (n,)))


def sentences(n):
    text = torch.randint(1, 30, (n, 7))
    text[:, 5:] = 0  # padding
    return Batch(text, text.roll(-1, 1))


class Last(nn.Module):
    """What a recurrence says at the end."""

    def __init__(self, lstm):
        super().__init__()
        self.lstm = lstm

    def forward(self, inputs):
        return self.lstm(inputs)[0][:, -1]


MODELS = {
    "linear": (Linear(), lambda n: images(n, 4), "cross_entropy"),
    "lenet": (LeNet(), lambda n: images(n, 16), "cross_entropy"),
    "cnn_pfl": (CnnPfl(), lambda n: images(n, 8), "cross_entropy"),
    "resnet20": (ResNet20(), images, "cross_entropy"),
    "resnet18": (ResNet18(), images, "cross_entropy"),
    "mobilenet_v2": (MobileNetV2(), images, "cross_entropy"),
    "char_lstm": (CharLstm(), texts, "cross_entropy"),
    "word_lstm": (WORDS, sentences, "tokens"),
    "word_lstm-last": (LAST, texts, "cross_entropy"),
}


def tasks(batches):
    """Of one step each, with the dropout seeds 100, 101, ..."""

    return [
        ClientTask(k, 0, 0, None, 1, 0.1, iter([batch]), iter(()), 100 + k, iter(()))
        for k, batch in enumerate(batches)
    ]


PRECISE = [
    # The largest model is like the next one.
    pytest.param(name, how, "float64", marks=long_form)
    if name == "resnet18"
    else (name, how, "float64")
    for name in MODELS
    for how in ("grouped", "products")
]
ROUGH = [(name, "products", "bf16") for name in ("linear", "lenet", "word_lstm")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "convolutions", "precision"), [*PRECISE, *ROUGH])
def test_every_model(name, convolutions, precision):
    """Batches that are not full, one place without a client, dropout from each client's seed."""
    config, draw, loss = MODELS[name]
    torch.manual_seed(0)
    rows = [draw(n) for n in SIZES]
    model = config.build(tuple(rows[0].inputs.shape[1:]), 30 if name.endswith(("m", "t")) else 10)
    replace_dropout(model)
    if precision == "float64":
        model = model.double()
        rows = [
            row._replace(inputs=row.inputs.double()) if row.inputs.is_floating_point() else row
            for row in rows
        ]
    x = parameters(model)
    points = torch.stack([x + 0.02 * torch.randn_like(x) for _ in range(4)])
    how = {"bf16": precision == "bf16", "clip": 0.5}
    found = loss_of(loss, 0 if loss == "tokens" else None)
    alone = Gradient(model, found, **how)
    many = BlockGradients(model, found, convolutions, **how)
    (step,) = PaddedBatches(4, 5).steps(tasks(rows))
    losses, gradients = many(points, step)
    assert step.active.tolist() == [True, True, True, False]
    assert gradients.isfinite().all()
    # In low precision, rounding tips a ReLU now and then.
    tolerance = 0.1 if precision == "bf16" else 1e-10
    for k, row in enumerate(rows):
        value, gradient = alone.stochastic(points[k].clone(), row, 100 + k)
        assert float(losses[k]) == pytest.approx(float(value), rel=tolerance)
        assert float((gradients[k] - gradient).norm()) < tolerance * float(gradient.norm())
    assert len(dropouts(model)) == {"cnn_pfl": 2, "mobilenet_v2": 1}.get(name, 0)


ODD = {
    "elu": nn.Sequential(nn.Linear(63, 13), nn.ELU(), nn.Linear(13, 7)),
    "mish": nn.Sequential(nn.Linear(63, 33), nn.Mish(), nn.Linear(33, 3)),
    "norm": nn.Sequential(nn.Linear(63, 15), nn.GroupNorm(3, 15), nn.Tanh(), nn.Linear(15, 7)),
    "convolutions": nn.Sequential(
        nn.Unflatten(1, (7, 3, 3)), nn.Conv2d(7, 5, 2), nn.Softplus(), nn.Conv2d(5, 3, 2),
        nn.Flatten(),
    ),
    "lstm": nn.Sequential(nn.Unflatten(1, (9, 7)), Last(nn.LSTM(7, 11, 2, batch_first=True))),
    "attention": nn.Sequential(
        nn.Unflatten(1, (9, 7)),
        nn.TransformerEncoderLayer(7, 1, 11, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(63, 3),
    ),
    "heads": nn.Sequential(
        nn.Unflatten(1, (3, 21)),
        nn.TransformerEncoderLayer(21, 3, 11, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(63, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_equal_clients_have_equal_bits_wherever_they_are(name, bf16):
    """Of layers that no vector of a processor divides."""
    torch.manual_seed(0)
    x = parameters(ODD[name])
    many = BlockGradients(ODD[name], LOSSES["cross_entropy"], "grouped", bf16=bf16)
    for size in (5, 33):
        row = Batch(torch.randn(size, 63), torch.randint(0, 3, (size,)))
        filling = PaddedBatches(5, 64)
        (step,) = filling.steps(tasks([row] * 5))
        losses, gradients = many(x.expand(5, -1).contiguous(), step)
        assert (losses == losses[0]).all()
        assert (gradients == gradients[0]).all()
        assert gradients.any()


@pytest.mark.slow
def test_no_operation_of_a_step_needs_the_host():
    """A CUDA graph can have none that waits, copies to the host or scatters by an index."""
    found = set()

    class Heard(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found.add(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    for name, (config, draw, loss) in MODELS.items():
        row = draw(4)
        model = config.build(tuple(row.inputs.shape[1:]), 30 if name.endswith(("m", "t")) else 10)
        replace_dropout(model)
        x = parameters(model)
        many = BlockGradients(model, LOSSES[loss], "products")
        (step,) = PaddedBatches(2, 4).steps(tasks([row, row]))
        with Heard():
            many(x.expand(2, -1).contiguous(), step)
    aten = torch.ops.aten
    assert aten.bmm in found
    assert not found & {aten.scatter_add, aten._local_scalar_dense, aten.nonzero, aten.item}


def test_a_model_that_cannot_be_played_for_many_says_so():
    both_ways = nn.LSTM(3, 4, bidirectional=True, batch_first=True)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = both_ways

        def forward(self, inputs):
            return self.lstm(inputs)[0].sum((1, 2))

    many = BlockGradients(Model(), LOSSES["quadratic"], "grouped")
    row = Batch(torch.randn(2, 5, 3), torch.zeros(2))
    (step,) = PaddedBatches(2, 4).steps(tasks([row, row]))
    with pytest.raises(NotImplementedError, match="bidirectional"):
        many(parameters(Model()).expand(2, -1), step)


class Words(nn.Module):
    """Drops parts of a tensor whose second dimension is the batch."""

    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(3, 4), nn.Dropout(0.5)

    def forward(self, inputs):
        return self.fc(self.drop(inputs.transpose(0, 1))).sum((0, 2))


class Functional(Words):
    """Drops by a function, which knows no client."""

    def forward(self, inputs):
        return self.fc(nn.functional.dropout(inputs, 0.5, self.training)).sum((1, 2))


@pytest.mark.parametrize(
    ("kind", "why"), [(Words, "whose first dimension is not the batch"), (Functional, "nn.Dropout")]
)
def test_dropout_that_is_not_each_client_s_own_is_refused(kind, why):
    model, row = kind(), Batch(torch.randn(2, 5, 3), torch.zeros(2))
    replace_dropout(model)
    many = BlockGradients(model, LOSSES["quadratic"], "grouped")
    with pytest.raises(NotImplementedError, match=why):
        many.probe(parameters(model), Batch(*(part[:1] for part in row)))
    (step,) = PaddedBatches(2, 4).steps(tasks([row, row]))
    model.eval()
    assert many(parameters(model).expand(2, -1), step)[1].any()


def test_a_model_with_dropout_is_its_own_again_behind_a_step():
    model, row = (
        nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)),
        Batch(torch.randn(2, 3), torch.tensor([0, 1])),
    )
    replace_dropout(model)
    (step,) = PaddedBatches(2, 4).steps(tasks([row, row]))
    BlockGradients(model, LOSSES["cross_entropy"], "grouped")(parameters(model).expand(2, -1), step)
    assert copy.deepcopy(model)(torch.randn(7, 3)).shape == (7, 2)


def test_filling_is_no_example_that_a_model_may_not_meet():
    """A client's own first example stands in: zeros have no direction, and nan x 0 is nan."""

    class Directions(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))  # of no dimension

        def forward(self, inputs):
            return self.scale * (inputs / inputs.norm(dim=1, keepdim=True)).sum(1)

    model, row = Directions(), Batch(torch.randn(2, 3) + 1, torch.zeros(2))
    many = BlockGradients(model, LOSSES["quadratic"], "grouped")
    (step,) = PaddedBatches(2, 5).steps(tasks([row]))
    _, gradients = many(parameters(model).expand(2, -1), step)
    alone = Gradient(model, LOSSES["quadratic"]).stochastic(parameters(model), row, 0)[1]
    torch.testing.assert_close(gradients[0], alone)
    assert not gradients[1].any()


def test_outside_of_vmap_nothing_is_stacked():
    with VmapLayers("products", pad=True), pytest.raises(RuntimeError, match="outside vmap"):
        stacked(torch.neg, torch.ones(3))


class MeanOfBatch(nn.Module):
    """Takes the batch's mean away, padding included."""

    def forward(self, inputs):
        return inputs - inputs.mean(0)


def test_batch_statistics_are_found_also_where_both_examples_are_equal():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), MeanOfBatch(), nn.Flatten(), nn.Linear(2 * 4, 3))
    many = BlockGradients(model, LOSSES["cross_entropy"], "grouped")
    for images in (torch.randn(2, 1, 4, 4), torch.randn(1, 1, 4, 4).expand(2, -1, -1, -1)):
        with pytest.raises(NotImplementedError, match="depends on the other examples"):
            many.probe(parameters(model), Batch(images, torch.tensor([0, 1])))


NORMS = {
    "plain": nn.BatchNorm2d(2, track_running_stats=False),
    "without weights": nn.BatchNorm2d(2, affine=False, track_running_stats=False),
    "by function": None,
}


class Norm(nn.Module):
    def forward(self, inputs):
        return nn.functional.batch_norm(inputs, None, None, training=True)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("precision", ["float64", "bf16"])
def test_batch_normalisation_leaves_padding_out(norm, precision):
    """A batch of one has several values of a channel here."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 2, 3),
        copy.deepcopy(NORMS[norm]) or Norm(),
        nn.Flatten(),
        nn.Linear(2 * 4, 3),
    )
    model, bf16 = nn.Sequential(*layers), precision == "bf16"
    model, near = (model, 0.05) if bf16 else (model.double(), 1e-13)
    dtype = torch.float32 if bf16 else torch.float64
    batches = [Batch(torch.randn(n, 1, 4, 4, dtype=dtype), torch.arange(n) % 3) for n in (4, 1, 3)]
    loss = LOSSES["cross_entropy"]
    many = BlockGradients(model, loss, "grouped", bf16=bf16)
    x = parameters(model)
    many.probe(x, Batch(*(leaf[:2] for leaf in batches[0])))
    (step,) = PaddedBatches(4, 6).steps(tasks(batches))
    losses, gradients = many(x.expand(4, -1), step)
    for k, batch in enumerate(batches):
        value, gradient = Gradient(model, loss, bf16=bf16).stochastic(x, batch, 0)
        torch.testing.assert_close(losses[k], value, rtol=0, atol=near, check_dtype=False)
        torch.testing.assert_close(gradients[k], gradient, rtol=0, atol=near)


def test_batch_normalisation_along_another_dimension_is_refused():
    model = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Flatten(0, 1), nn.BatchNorm1d(2)).append(
        nn.Sequential(nn.Unflatten(0, (-1, 2)), nn.Flatten(), nn.Linear(4, 3))
    )
    model[2].track_running_stats = False
    many = BlockGradients(model, LOSSES["cross_entropy"], "grouped")
    with pytest.raises(NotImplementedError, match="first dimension is not the batch"):
        many.probe(parameters(model), Batch(torch.randn(2, 4), torch.tensor([0, 1])))


def test_a_layer_that_is_used_twice_is_left_as_it_was():
    """torch.func.functional_call leaves its parameters in a layer that has two names."""
    layer = nn.Linear(3, 3)
    tied = nn.Linear(3, 3, bias=False)
    tied.weight = layer.weight
    model = nn.Sequential(layer, nn.Tanh(), layer, tied).double()
    own, x = dict(model.named_parameters(remove_duplicate=False)), parameters(model)
    row = Batch(torch.randn(2, 3).double(), torch.tensor([0, 1]))
    many = BlockGradients(model, LOSSES["cross_entropy"], "grouped")
    (step,) = PaddedBatches(2, 3).steps(tasks([row, row]))
    _, gradients = many(x.expand(2, -1), step)
    assert all(p is own[n] for n, p in model.named_parameters(remove_duplicate=False))
    expected = Gradient(model, LOSSES["cross_entropy"]).stochastic(x, row, 0)[1]
    torch.testing.assert_close(gradients[1], expected, rtol=0, atol=1e-14)


class Attention(nn.Module):
    """A head of attention over the words, by the function that picks a kernel."""

    def __init__(self, dropout=0.0, **settings):
        super().__init__()
        self.fc, self.dropout, self.settings = nn.Linear(3, 8), dropout, settings

    def forward(self, inputs):
        words = self.fc(inputs)[:, None]
        attend = nn.functional.scaled_dot_product_attention
        return attend(words, words, words, dropout_p=self.dropout, **self.settings).sum((1, 2, 3))


class Groups(nn.Module):
    """Four heads of queries that share two of keys, with a mask."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys = nn.Linear(3, 8), nn.Linear(3, 4)

    def forward(self, inputs):
        queries = self.queries(inputs).unflatten(-1, (4, 2)).transpose(1, 2)
        keys = self.keys(inputs).unflatten(-1, (2, 2)).transpose(1, 2)
        shown = (inputs[..., 0] > 0)[:, None, None]
        attend = nn.functional.scaled_dot_product_attention
        return attend(queries, keys, keys, shown, scale=0.3, enable_gqa=True).sum((1, 2, 3))


class Hidden(nn.Module):
    """Hides queries, by a mask that is alike for all keys."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, inputs):
        words = self.fc(inputs)
        shown = (inputs[..., 0] > 0)[..., None]
        attend = nn.functional.scaled_dot_product_attention
        return attend(words, words, words, shown).sum((1, 2))


class Heads(nn.Module):
    """PyTorch's attention, of sequences or of one at a time."""

    def __init__(self, *, masked=False, own=False, need_weights=False):
        super().__init__()
        self.heads = nn.MultiheadAttention(6, 2, batch_first=True, kdim=3 if own else None)
        self.fc, self.own = nn.Linear(3, 6), own
        self.settings = {"need_weights": need_weights}
        if masked:
            self.settings["attn_mask"] = torch.ones(5, 5).triu(1).bool()

    def forward(self, inputs):
        words = self.fc(inputs)
        if "attn_mask" in self.settings:
            self.settings["key_padding_mask"] = inputs[..., 1] < -1
        keys = inputs if self.own else words
        outputs, weights = self.heads(words, keys, words, **self.settings)
        found = outputs.sum((1, 2))
        return found if weights is None else found + weights.square().sum((1, 2))


class OneByOne(Heads):
    """Without a dimension for the examples."""

    def forward(self, inputs):
        words = self.fc(inputs)
        return torch.stack([self.heads(row, row, row)[0].sum() for row in words])


ATTENTION = {
    "function": Attention,
    "causal": lambda: Attention(is_causal=True),
    "groups": Groups,
    "hidden queries": Hidden,
    "heads": Heads,
    "weights": lambda: Heads(need_weights=True),
    "masked": lambda: Heads(masked=True),
    "masked weights": lambda: Heads(masked=True, need_weights=True),
    "keys of another width": lambda: Heads(own=True),
    "one by one": OneByOne,
}


@pytest.mark.filterwarnings("error")  # torch warns where vmap calls client after client
@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_is_computed_for_all_clients_at_once(kind):
    torch.manual_seed(0)
    model = ATTENTION[kind]().double()
    rows = [Batch(torch.randn(2, 5, 3).double(), torch.zeros(2).double()) for _ in range(2)]
    for row in rows:
        row.inputs[:, 0] = 1  # so that a causal query meets a key that is not padding
    many = BlockGradients(model, LOSSES["quadratic"], "grouped")
    (step,) = PaddedBatches(2, 2).steps(tasks(rows))
    x = parameters(model)
    found = many(x.expand(2, -1), step)[1]
    one = Gradient(model, LOSSES["quadratic"])
    for row, gradient in zip(rows, found, strict=True):
        expected = one.stochastic(x, row, 0)[1]
        assert expected.isfinite().all()
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-13)


def test_an_example_of_which_nothing_is_shown_is_zero():
    """Padded examples are: a mask of where the tokens are hides all of them."""
    model = Groups()
    row = Batch(torch.randn(2, 5, 3), torch.zeros(2))
    row.inputs[1, :, 0] = -1
    many = BlockGradients(model, LOSSES["quadratic"], "grouped")
    (step,) = PaddedBatches(1, 3).steps(tasks([row]))
    x = parameters(model)
    (gradient,) = many(x[None], step)[1]
    expected = Gradient(model, LOSSES["quadratic"]).stochastic(x, row, 0)[1]
    assert gradient.any()
    torch.testing.assert_close(gradient, expected)


def test_keys_that_are_added_are_refused():
    model = Heads()
    model.heads = nn.MultiheadAttention(6, 2, batch_first=True, add_zero_attn=True)
    many = BlockGradients(model, LOSSES["quadratic"], "grouped")
    with pytest.raises(NotImplementedError, match="add_zero_attn"):
        many.probe(parameters(model), Batch(torch.randn(1, 5, 3), torch.zeros(1)))


def test_dropout_inside_an_attention_is_refused():
    model = Attention(dropout=0.5)
    many = BlockGradients(model, LOSSES["quadratic"], "grouped")
    with pytest.raises(NotImplementedError, match="dropout inside an attention"):
        many.probe(parameters(model), Batch(torch.randn(1, 5, 3), torch.zeros(1)))
