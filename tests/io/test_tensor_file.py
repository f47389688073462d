"""Files of tensors are written without a copy of them: the bytes that the packages would write."""

import io

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from hpcfl.checkpoint import initial
from hpcfl.io.tensor_file import _DTYPES, on_cpu, parts_of


@pytest.mark.parametrize("metadata", [None, {"crc32": "12"}])
def test_the_bytes_of_the_package(metadata):
    """Of every dtype, and of names, numbers and shapes that need care."""
    tensors = {
        f'{letter}"\u00e9\n{name}': torch.arange(5 + k).reshape(-1, 1).float().to(dtype)
        for k, (dtype, name) in enumerate(_DTYPES.items())
        for letter in "ba"
    }
    tensors |= {"": torch.tensor(1.5), "empty": torch.zeros(0, 3)}
    for own in (tensors, {}):
        assert b"".join(parts_of(own, metadata)) == save(own, metadata)


def test_the_tensors_are_not_copied():
    tensor = torch.ones(3)
    content = parts_of({"x": on_cpu(tensor)})
    tensor += 1
    assert load(b"".join(content))["x"].tolist() == [2, 2, 2]


def test_a_view_in_another_order_is_written_by_its_values():
    transposed = torch.arange(6.0).reshape(2, 3).t()
    content = b"".join(parts_of({"x": on_cpu(transposed)}))
    assert torch.equal(load(content)["x"], transposed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_initial_model_has_the_bytes_of_numpy(tmp_path, dtype):
    x0, expected = torch.arange(7, dtype=dtype), io.BytesIO()
    np.save(expected, x0.numpy())
    crc = initial.write(tmp_path / "initial.npy", x0)
    assert (tmp_path / "initial.npy").read_bytes() == expected.getvalue()
    assert initial.crc32(expected.getvalue()) == crc
