import torch

from hpcfl.data.base import Dataset
from hpcfl.data.sources.arrays import cast
from hpcfl.types import Examples


def test_a_sample_is_a_copy():
    """A transform of the user's may change what it is given."""
    inputs = torch.arange(6.0).reshape(3, 2)
    train = Examples(inputs, torch.zeros(3))
    data = Dataset(train, None, None, None, "squared", cast)
    data.sample(2).zero_()
    assert torch.equal(train.inputs, torch.arange(6.0).reshape(3, 2))
