import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hpcfl.errors import JobError
from hpcfl.models import MODELS
from hpcfl.models.init import load_initial


def lenet(outputs=10, seed=0):
    torch.manual_seed(seed)
    return MODELS["lenet"]().build((1, 16, 16), outputs)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("dtype", [np.float32, ">f8"])
def test_a_flat_vector_in_the_order_of_named_parameters(tmp_path, dtype):
    model = lenet()
    vector = np.arange(flat(model).numel(), dtype=dtype) / 1024
    np.save(tmp_path / "x.npy", vector)
    assert load_initial(model, tmp_path / "x.npy") == ()
    assert np.array_equal(flat(model), vector.astype(np.float32))
    first = vector[: 64 * 25].reshape(64, 1, 5, 5)
    assert np.array_equal(model.conv1.weight.detach(), first.astype(np.float32))


def test_a_whole_state_dict(tmp_path):
    given, model = lenet(seed=1), lenet()
    save_file(given.state_dict(), tmp_path / "x.safetensors")
    assert load_initial(model, tmp_path / "x.safetensors") == ()
    assert torch.equal(flat(model), flat(given))


def test_a_backbone_with_a_head_for_other_classes(tmp_path):
    given, model = lenet(100, seed=1), lenet()
    head = model.fc3.weight.detach().clone()
    save_file({**given.state_dict(), "extra": torch.ones(1)}, tmp_path / "x.safetensors")
    skipped = load_initial(model, tmp_path / "x.safetensors")
    assert skipped == ("fc3.weight", "fc3.bias", "extra")
    assert torch.equal(model.fc2.weight, given.fc2.weight)
    assert torch.equal(model.fc3.weight, head)


def test_a_partial_state_dict_names_what_it_lacks(tmp_path):
    model = lenet()
    save_file({"conv1.bias": torch.ones(64)}, tmp_path / "x.safetensors")
    skipped = load_initial(model, tmp_path / "x.safetensors")
    assert len(skipped) == 9
    assert "conv1.bias" not in skipped
    assert torch.equal(model.conv1.bias, torch.ones(64))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"conv1.bias": torch.ones(3)}, r"conv1\.bias has shape \(3,\), the model's has \(64,\)"),
        ({"conv1.bias": torch.full((64,), torch.nan)}, r"conv1\.bias is not finite"),
        ({"other": torch.ones(3)}, r"nothing fits the model; it holds other, the model conv1\.w"),
        ({"fc3.bias": torch.ones(3)}, "nothing fits"),
    ],
)
def test_state_dicts_that_do_not_fit(tmp_path, entries, message):
    model = lenet()
    before = flat(model)
    save_file({"conv2.bias": torch.ones(64), **entries}, tmp_path / "x.safetensors")
    if message.startswith("nothing"):
        save_file(entries, tmp_path / "x.safetensors")
    with pytest.raises(JobError, match=message):
        load_initial(model, tmp_path / "x.safetensors")
    assert torch.equal(flat(model), before)  # nothing was copied


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.zeros(5), r"float64 of shape \(5,\), the model has \d+ parameters"),
        (np.zeros((2, 2)), "shape"),
        (np.array({}), "not a readable"),
        (np.zeros(9, int), "int64"),
    ],
)
def test_vectors_that_do_not_fit(tmp_path, vector, message):
    np.save(tmp_path / "x.npy", vector)
    with pytest.raises(JobError, match=message):
        load_initial(lenet(), tmp_path / "x.npy")


def test_a_vector_that_is_not_finite(tmp_path):
    vector = flat(lenet()).numpy()
    vector[3] = np.inf
    np.save(tmp_path / "x.npy", vector)
    with pytest.raises(JobError, match="entry 3 is not finite"):
        load_initial(lenet(), tmp_path / "x.npy")


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors"])
def test_missing_and_broken_files(tmp_path, name):
    with pytest.raises(JobError, match=f"{name}: not a readable"):
        load_initial(lenet(), tmp_path / name)
    (tmp_path / name).write_bytes(b"\x93NUMPY nonsense")
    with pytest.raises(JobError, match=f"{name}: not a readable"):
        load_initial(lenet(), tmp_path / name)


def test_another_kind_of_file(tmp_path):
    with pytest.raises(JobError, match=r"x\.pt: expected a \.npy or a \.safetensors file"):
        load_initial(lenet(), tmp_path / "x.pt")
