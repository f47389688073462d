"""FedMIM's colours: factors by client, torchvision's formulas, the test set as it is."""

import numpy as np
import pytest
import torch

from hpcfl.data.colour import Colour
from hpcfl.data.images import CropFlipNormalize
from hpcfl.data.partition import Pooled
from hpcfl.data.sources.cifar10 import Cifar10
from hpcfl.job.load import load
from hpcfl.start.components.build import build_components
from tests.vision import torchvision

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "augment": False}
IMAGES = torch.randint(256, (5, 8, 6, 3), generator=torch.Generator().manual_seed(0)).byte()


def seen(images=IMAGES, dtype=torch.float64, **factors):
    """Pixels in [0, 1], [B, H, W, 3]."""
    made = CropFlipNormalize(**PLAIN, **factors)(images, dtype, None)
    return made.permute(0, 2, 3, 1)


def test_by_hand():
    """Pixel (51, 102, 204) is (.2, .4, .8); times 1.5, (.3, .6, 1): 1.2 is cut off.

    Grey is then .2989 * .3 + .587 * .6 + .114 * 1 = .55587, and with s = .5 the pixel becomes
    (.3, .6, 1) / 2 + .277935 = (.427935, .577935, .777935).
    With s = 2 it is (.6, 1.2, 2) - .55587 = (.04413, .64413, 1.44413), cut off to 1.
    """
    pixel = torch.tensor([51, 102, 204], dtype=torch.uint8).view(1, 1, 1, 3)
    for saturation, expected in (
        (1.0, [0.3, 0.6, 1.0]),
        (0.5, [0.427935, 0.577935, 0.777935]),
        (2.0, [0.04413, 0.64413, 1.0]),
    ):
        found = seen(pixel, brightness=1.5, saturation=saturation)
        assert torch.allclose(found.flatten(), torch.tensor(expected).double(), atol=1e-6)


def test_extremes():
    assert not seen(brightness=0.0).any()
    grey = seen(saturation=0.0)
    assert torch.equal(grey[..., 0], grey[..., 1])
    assert torch.equal(grey[..., 1], grey[..., 2])
    assert torch.equal(seen(brightness=1.0, saturation=1.0), seen())


@pytest.mark.parametrize(("b", "s"), [(1.3, 1.0), (0.6, 1.0), (1.0, 1.7), (1.0, 0.4), (1.4, 0.7)])
def test_as_torchvision_does_it(b, s):
    functional = torchvision().transforms.functional
    images = (IMAGES.double() / 255).permute(0, 3, 1, 2)
    expected = functional.adjust_saturation(functional.adjust_brightness(images, b), s)
    found = seen(brightness=b, saturation=s).permute(0, 3, 1, 2)
    assert torch.allclose(found, expected, atol=1e-4)  # its grey has four digits


def test_before_normalisation_and_after_the_crop():
    made = CropFlipNormalize(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), brightness=0.5)
    pixels = seen(brightness=0.5)
    mean, std = torch.tensor([0.5, 0.4, 0.3]).double(), torch.tensor([0.2, 0.3, 0.4]).double()
    found = made(IMAGES, torch.float64, None).permute(0, 2, 3, 1)
    assert torch.allclose(found, (pixels - mean) / std, atol=1e-6)


@pytest.fixture
def root(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    y = draw.integers(0, 10, 120)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return tmp_path


def factors(dataset, clients=400):
    made = [dataset.personal(client) for client in range(clients)]
    return np.array([[each.brightness, each.saturation] for each in made])


def test_factors_are_the_client_s_own_and_stay(root):
    config = Cifar10(root=str(root), colour=Colour(brightness=0.3, saturation=0.8))
    drawn = factors(config.load(7))
    assert np.array_equal(drawn, factors(config.load(7)))
    assert not np.isclose(drawn, factors(config.load(8))).any()
    assert len(np.unique(drawn)) == drawn.size
    low, high = drawn.min(axis=0), drawn.max(axis=0)
    assert np.allclose(low, [0.7, 0.2], atol=0.02)
    assert np.allclose(high, [1.3, 1.8], atol=0.02)
    assert np.allclose(drawn.mean(axis=0), 1, atol=0.06)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.15


def test_one_of_the_two_alone(root):
    drawn = factors(Cifar10(root=str(root), colour=Colour(saturation=0.5)).load(0))
    assert (drawn[:, 0] == 1).all()
    assert drawn[:, 1].std() > 0.2
    assert Cifar10(root=str(root)).load(0).personal is None


JOB = {
    "task": "cifar10-lenet",
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedavg"},
    "local": {"lr": 0.1, "batch_size": 4},
    "rounds": 1,
    "device": "cpu",
}


def test_a_client_sees_its_colours_in_all_that_it_has_and_the_test_set_is_as_stored(
    root, own_process
):
    data = {"root": str(root), "clients": 6, "holdout": 0.3, "augment": False}
    colour = {"brightness": 0.5, "saturation": 0.5}
    parts = [
        build_components(load({**JOB, "data": {**data, **more}}), torch.device("cpu"))
        for more in ({"colour": colour}, {})
    ]
    coloured, plain = (each.population.clients for each in parts)
    population = parts[0].population
    personal = population.dataset.personal
    for client in range(6):
        for part in ("training", "testing"):
            (found,), (stored,) = (list(getattr(p, part)(client)) for p in (coloured, plain))
            rows = (population.rows if part == "training" else population.split.held_out)[client]
            images = population.dataset.train.inputs[torch.from_numpy(rows)]
            assert torch.equal(found.inputs, personal(client)(images, torch.float32, None))
            assert not torch.allclose(found.inputs, stored.inputs, atol=0.01)
        first = next(iter(coloured.task(client, 0).batches))
        everything = next(iter(coloured.training(client))).inputs
        assert any(torch.equal(first.inputs[0], image) for image in everything)
    tests = [next(iter(each.population.tests().batches(0, 1))).inputs for each in parts]
    assert torch.equal(*tests)
    kept = {"validation": {"share": 0.3, "of": "clients"}, "colour": colour}
    validated = build_components(load({**JOB, "data": {**data, **kept}}), torch.device("cpu"))
    numbers, images = validated.population.split.clients, population.dataset.train.inputs[:2]
    assert len(numbers) == 4
    for client, number in enumerate(numbers):  # the client keeps its colours under its new number
        found = validated.population.dataset.personal(client)(images, torch.float32, None)
        assert torch.equal(found, personal(number)(images, torch.float32, None))


def test_pooled_clients_have_no_colour_of_their_own():
    with pytest.raises(ValueError, match="one client, which would see every image in one colour"):
        Cifar10(partition=Pooled(), colour=Colour(brightness=0.1))
