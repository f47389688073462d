import numpy as np
import pytest
import torch

from hpcfl.data.images import CropFlipNormalize, crop_flip

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
IMAGES = torch.randint(
    0, 256, (40, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
TRANSFORM = CropFlipNormalize(mean=MEAN, std=STD)


def draws(seed=3):
    return torch.from_numpy(np.random.default_rng(seed).integers(2**63, size=40))


def by_hand(images, draws):
    """One image after the other, from the same draws, in numpy."""
    result = []
    for image, draw in zip(images.numpy(), draws.tolist(), strict=True):
        flip, row, column = draw // 81, draw // 9 % 9, draw % 9
        crop = np.pad(image, ((4, 4), (4, 4), (0, 0)))[row : row + 32, column : column + 32]
        result.append(crop[:, ::-1] if flip else crop)
    return np.stack(result)


def test_the_same_draw_cropped_and_flipped_by_hand():
    crops = draws() % 162
    assert len({d // 81 for d in crops.tolist()}) == 2
    expected = by_hand(IMAGES, crops)
    assert np.array_equal(crop_flip(IMAGES, 4, draws(), IMAGES.shape[1:3]).numpy(), expected)
    assert np.array_equal(crop_flip(IMAGES, 4, crops, IMAGES.shape[1:3]).numpy(), expected)


def test_without_draws_images_are_only_normalised():
    inputs = TRANSFORM(IMAGES, torch.float64, None)
    pixels = IMAGES.double().permute(0, 3, 1, 2) / 255
    expected = (pixels - torch.tensor(MEAN).double().view(3, 1, 1)) / torch.tensor(
        STD
    ).double().view(3, 1, 1)
    # The constants above went through float32.
    assert torch.allclose(inputs, expected, atol=1e-6, rtol=0)


def test_augmented_images_are_normalised_likewise():
    cropped = crop_flip(IMAGES, 4, draws(), IMAGES.shape[1:3])
    assert torch.equal(
        TRANSFORM(IMAGES, torch.float32, draws()), TRANSFORM(cropped, torch.float32, None)
    )


def test_augmentation_can_be_switched_off():
    plain = CropFlipNormalize(mean=MEAN, std=STD, augment=False)
    assert torch.equal(
        plain(IMAGES, torch.float32, draws()), TRANSFORM(IMAGES, torch.float32, None)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_type_and_layout(dtype):
    inputs = TRANSFORM(IMAGES, dtype, draws())
    assert inputs.shape == (40, 3, 32, 32)
    assert inputs.dtype == dtype
    assert inputs.is_contiguous(memory_format=torch.channels_last)


def test_only_the_rows_and_the_draws_determine_the_bits():
    before = IMAGES.clone()
    first = TRANSFORM(IMAGES, torch.float32, draws())
    torch.manual_seed(99)  # the global generator has no say
    torch.rand(7)
    assert torch.equal(TRANSFORM(IMAGES, torch.float32, draws()), first)
    assert not torch.equal(TRANSFORM(IMAGES, torch.float32, draws(4)), first)
    assert torch.equal(IMAGES, before)
    part = TRANSFORM(IMAGES[9:12], torch.float32, draws()[9:12])  # in whatever company
    assert torch.equal(part, first[9:12])
    picked = IMAGES[torch.arange(39, -1, -1)].flip(0)  # the same rows in other memory
    assert torch.equal(TRANSFORM(picked, torch.float32, draws()), first)


def test_every_image_has_a_draw_of_its_own():
    same = IMAGES[:1].expand(40, -1, -1, -1)
    assert len(torch.unique(crop_flip(same, 4, draws(), same.shape[1:3]), dim=0)) > 30


def test_a_rectangle_with_one_channel():
    images = IMAGES[:, :20, :, :1]
    cropped = crop_flip(images, 0, draws(), images.shape[1:3])
    flips = (draws() % 2).bool()
    assert torch.equal(cropped, torch.where(flips[:, None, None, None], images.flip(2), images))
