"""Models of the comparison with FedJAX, for ``model.of``."""

from torch import nn


def mlp(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Dense layers with ReLU between them, two of width 200, as FedJAX's for EMNIST."""
    (features,) = input_shape
    return nn.Sequential(
        nn.Linear(features, 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, outputs),
    )
