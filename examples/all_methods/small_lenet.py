"""A small convolutional network, so that hundreds of runs take hours of one core and not weeks."""

from torch import nn


def small_lenet(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """LeNet-5 with relu: 62 006 parameters for 10 classes of images [3, 32, 32]."""
    return nn.Sequential(
        *(nn.Conv2d(input_shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)),
    )


def normed_lenet(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The same with batch normalisation behind each convolution."""
    return nn.Sequential(
        *(nn.Conv2d(input_shape[0], 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)),
    )
