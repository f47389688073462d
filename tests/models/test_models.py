import pytest
import torch
from torch.nn.functional import linear

from hpcfl.errors import JobError
from hpcfl.local.autocast import autocast_bfloat16
from hpcfl.models import MODELS

IMAGE = (3, 32, 32)
CASES = [
    ("lenet", IMAGE, 10, 797_962),
    ("lenet", IMAGE, 100, 815_332),
    ("resnet20", IMAGE, 10, 269_722),
    ("resnet20", IMAGE, 100, 275_572),
    ("char_lstm", (80,), 80, 133_520),
    ("resnet18", (3, 64, 64), 1000, 11_689_512),
    ("resnet18", IMAGE, 10, 11_689_512 - 513 * 990),
    ("mobilenet_v2", IMAGE, 1000, 3_504_872),
    ("mobilenet_v2", IMAGE, 2028, 2_223_872 + 1281 * 2028),
    ("cnn_fedavg", (1, 28, 28), 10, 1_663_370),
    ("cnn_fedavg", (1, 28, 28), 47, 1_682_351),
    ("cnn_pfl", IMAGE, 10, 1_626_442),
    ("logistic", (28, 28), 26, 785 * 26),
    ("word_lstm", (20,), 10_004, 4_053_428),
    ("linear", (64,), 10, 650),
    ("linear", IMAGE, 10, 30_730),
    ("linear", (8,), 1, 9),
    ("point", (2, 5), 1, 5),
]


def build(name, shape, outputs, **fields):
    torch.manual_seed(0)
    return MODELS[name](**fields).build(shape, outputs).eval()


def batch(name, shape, count=4):
    generator = torch.Generator().manual_seed(1)
    if name.endswith("_lstm"):
        return torch.randint(80, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


@pytest.mark.parametrize(("name", "shape", "outputs", "parameters"), CASES)
def test_parameter_counts(name, shape, outputs, parameters):
    model = build(name, shape, outputs)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert not list(model.buffers())


@pytest.mark.parametrize(("name", "shape", "outputs", "parameters"), CASES)
def test_outputs_follow_the_memory_that_parameters_point_to(name, shape, outputs, parameters):
    model, inputs = build(name, shape, outputs), batch(name, shape)
    expected = model(inputs).detach()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    other = flat + 0.1
    home = flat.clone()
    first = 0
    for p in model.parameters():
        p.data = home[first : first + p.numel()].view_as(p)
        first += p.numel()
    assert torch.equal(model(inputs), expected)
    home.copy_(other)
    assert not torch.allclose(model(inputs), expected, rtol=1e-3)
    gradients = torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))
    assert all(g.isfinite().all() for g in gradients)
    home.copy_(flat)
    assert torch.equal(model(inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape", "outputs", "parameters"), CASES)
def test_bfloat16_autocast_is_close(name, shape, outputs, parameters):
    model, inputs = build(name, shape, outputs), batch(name, shape)
    expected = model(inputs)
    with autocast_bfloat16("cpu"):
        rough = model(inputs)
    assert rough.shape == expected.shape
    assert torch.allclose(rough.float(), expected, atol=0.05, rtol=0.05)
    gradients = torch.autograd.grad(rough.float().sum(), list(model.parameters()))
    assert all(g.dtype == torch.float32 for g in gradients)


@pytest.mark.parametrize("name", ["lenet", "resnet20", "resnet18", "mobilenet_v2", "cnn_pfl"])
def test_memory_layout_changes_nothing_but_rounding(name):
    model, inputs = build(name, IMAGE, 10), batch(name, IMAGE)
    last = inputs.to(memory_format=torch.channels_last)
    assert torch.allclose(model(inputs), model(last), atol=1e-5)


def test_linear_is_linear():
    model = build("linear", (2, 3), 4)
    inputs = batch("linear", (2, 3))
    weight, bias = model.parameters()
    assert torch.allclose(model(inputs), linear(inputs.reshape(4, 6), weight, bias))
    assert [p.shape for p in build("linear", (6,), 4, bias=False).parameters()] == [(4, 6)]


def test_point_by_hand():
    model = build("point", (2, 2), 1, start=2.0)
    inputs = torch.tensor([[[1.0, 3.0], [5.0, -1.0]]])
    assert model(inputs).tolist() == [0.5 * (1 * 4 + 3 * 4) - (10 - 2)]
    (gradient,) = torch.autograd.grad(model(inputs).sum(), list(model.parameters()))
    assert gradient.tolist() == [2 - 5, 6 + 1]


def test_resnet_shortcuts_pass_the_input_on():
    model = build("resnet20", IMAGE, 10)
    block = model.blocks[3]  # 16 to 32 channels, half the size
    with torch.no_grad():
        block.norm2.weight.zero_()
    inputs = torch.rand(1, 16, 8, 8)
    outputs = block(inputs)
    assert torch.equal(outputs[:, 8:24], inputs[:, :, ::2, ::2])
    assert not outputs[:, :8].any()
    assert not outputs[:, 24:].any()


def test_resnet20_starts_kaiming_normal_where_asked():
    torch.manual_seed(0)
    model = build("resnet20", IMAGE, 10, random="kaiming")
    for layer, fan_in in ((model.blocks[8].conv2, 64 * 9), (model.fc, 64)):
        weight = layer.weight.detach()
        # 5 deviations of the estimate; PyTorch's own are uniform up to 1 / sqrt(fan-in).
        deviation = (2 / fan_in) ** 0.5
        spread = 5 * deviation / (2 * weight.numel()) ** 0.5
        assert abs(weight.std().item() - deviation) < spread
        assert weight.abs().max() > fan_in**-0.5 + spread


def test_lenet_takes_other_sizes():
    assert build("lenet", (1, 28, 28), 47)(batch("lenet", (1, 28, 28))).shape == (4, 47)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("lenet", (64,)), ("lenet", (3, 15, 32)), ("resnet20", (3, 32)), ("resnet20", (1, 2, 2)),
     ("char_lstm", IMAGE), ("word_lstm", IMAGE), ("point", (8,)), ("point", (3, 2)),
     ("resnet18", (784,)), ("mobilenet_v2", (32, 32)), ("cnn_fedavg", (1, 3, 28)),
     ("cnn_pfl", (3, 32, 5))],
)  # fmt: skip
def test_a_shape_that_does_not_fit(name, shape):
    with pytest.raises(JobError, match=rf"model\.name: {name} takes"):
        MODELS[name]().build(shape, 10)


NO_CHANNEL = "these have no channels: use x[:, None] (x and x_test in numpy) instead"
LAST = (
    "these have their channels last: use np.transpose(x, (0, 3, 1, 2)) (x and x_test in numpy) "
    "instead"
)
IMAGES = ["lenet", "cnn_fedavg", "cnn_pfl", "resnet18", "resnet20", "mobilenet_v2"]


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((28, 28), NO_CHANNEL),
        ((3, 32), NO_CHANNEL),
        ((32, 32, 3), LAST),
        ((48, 32, 3), LAST),
        ((32, 32, 4), LAST),
        ((28, 28, 1), LAST),
    ],
)
def test_images_with_channels_elsewhere_are_told_how_to_turn(name, shape, hint):
    """Some of these would pass for images of 32 channels and 32 x 3 pixels."""
    with pytest.raises(JobError) as caught:
        MODELS[name]().build(shape, 10)
    said = str(caught.value)
    assert said.startswith(f"model.name: {name} takes images of shape (C, H, W), at least ")
    assert said.endswith(f", not {shape}; {hint}")


@pytest.mark.parametrize("shape", [(3, 32, 3), (9, 128, 1), (64, 7, 7), (4, 5, 3)])
def test_narrow_images_with_channels_first_are_taken(shape):
    assert build("resnet18", shape, 5)(batch("resnet18", shape)).shape == (4, 5)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "cnn_fedavg", "cnn_pfl"])
@pytest.mark.parametrize("shape", [(3, 64, 48), (1, 28, 28), (3, 8, 8)])
def test_other_sizes(name, shape):
    assert build(name, shape, 7)(batch(name, shape)).shape == (4, 7)


def test_logistic_is_linear_started_at_zero():
    model, inputs = build("logistic", (2, 3), 4), batch("linear", (2, 3))
    assert not model(inputs).any()
    assert [p.shape for p in model.parameters()] == [(4, 6), (4,)]
    assert [p.shape for p in build("logistic", (6,), 4, bias=False).parameters()] == [(4, 6)]


@pytest.mark.parametrize("name", ["mobilenet_v2", "cnn_pfl"])
def test_dropout_is_for_training(name):
    model, inputs = build(name, IMAGE, 10), batch(name, IMAGE)
    assert torch.equal(model(inputs), model(inputs))
    model.train()
    assert not torch.equal(model(inputs), model(inputs))


def test_the_share_of_dropout_is_a_key():
    model, inputs = build("mobilenet_v2", IMAGE, 10, dropout=0.0).train(), batch("lenet", IMAGE)
    assert torch.equal(model(inputs), model(inputs))


SMALL = {"embedded": 3, "hidden": 5, "projected": 4}


def test_word_lstm_answers_after_every_word_or_once():
    """Once means after the last word before the padding, which is not read."""
    every, last = (build("word_lstm", (6,), 12, predict=p, **SMALL) for p in ("every", "last"))
    assert sum(p.numel() for p in every.parameters()) == 12 * 3 + 4 * 5 * (3 + 5 + 2) + 24 + 60
    text = torch.tensor([[10, 1, 2, 0, 0, 0], [10, 3, 4, 5, 6, 7], [10, 0, 0, 0, 0, 0]])
    answers = every(text)
    assert answers.shape == (3, 6, 12)
    assert torch.allclose(last(text), answers[[0, 1, 2], [2, 5, 0]])
    assert torch.allclose(last(text)[0], last(text[:1, :3])[0])


def test_model_and_data_predict_the_same(refused, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "task: stackoverflow\nmodel: {predict: last}\ncohort: {kind: uniform, size: 1}\n"
        "algorithm: {name: fedavg}\nlocal: {lr: 0.1}\nrounds: 1\n"
    )
    said = refused("check", path)
    assert "job.yaml:2: model.predict: the model's is last, but data.predict is every" in said


@pytest.mark.parametrize(
    ("task", "model", "expected"),
    [
        (
            "task: shakespeare",
            "word_lstm, predict: last",
            "predict: last reads the state before the",
        ),
        ("data: {kind: leaf, examples: text}", "word_lstm, predict: last", "predict: last reads"),
        (
            "task: stackoverflow",
            "char_lstm",
            "name: char_lstm answers after the last token of a text",
        ),
    ],
)
def test_padding_is_what_the_model_takes_for_it(refused, tmp_path, task, model, expected):
    path = tmp_path / "job.yaml"
    path.write_text(
        f"{task}\nmodel: {{name: {model}}}\ncohort: {{kind: uniform, size: 1}}\n"
        "algorithm: {name: fedavg}\nlocal: {lr: 0.1}\nrounds: 1\n"
    )
    assert f"job.yaml:2: model.{expected}" in refused("check", path)
