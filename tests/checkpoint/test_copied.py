import torch

from hpcfl.checkpoint.format import copied


def test_a_copy_is_in_order_in_memory():
    """As safetensors needs it; a server's tensors may be views in another order."""
    transposed = torch.arange(6.0).reshape(2, 3).t()
    found = copied(transposed)
    assert found.is_contiguous()
    assert torch.equal(found, transposed)
