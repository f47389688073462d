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
        (
            {"conv1.bias": torch.full((64,), 1e39, dtype=torch.float64)},
            r"conv1\.bias has numbers up to 1e\+39, beyond the model's float32",
        ),
        (
            {"other": torch.ones(3)},
            r"nothing fits the model; it holds other \(3,\); the model has conv1\.w",
        ),
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
        (np.zeros(5), r"a vector of shape \(5,\), the model has \d+ parameters"),
        (np.zeros((2, 2)), r"found float64 of shape \(2, 2\), expected a flat vector of floats"),
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


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors", "x.pth", "x.pt"])
def test_missing_and_broken_files(tmp_path, name):
    with pytest.raises(JobError, match=f"{name}: there is no such file"):
        load_initial(lenet(), tmp_path / name)
    (tmp_path / name).write_bytes(b"\x93NUMPY nonsense")
    with pytest.raises(JobError, match=f"{name}: not a readable"):
        load_initial(lenet(), tmp_path / name)


def test_another_kind_of_file(tmp_path):
    (tmp_path / "x.h5").touch()
    with pytest.raises(JobError, match=r"x\.h5: expected a \.npy, \.safetensors, \.pth or \.pt f"):
        load_initial(lenet(), tmp_path / "x.h5")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["x.pth", "x.pt"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda entries: entries,
        lambda entries: {"state_dict": entries, "epoch": 3},
        lambda entries: {"model": entries, "optimizer": {"state": {}}},
        lambda entries: {"state_dict": {f"module.{name}": v for name, v in entries.items()}},
    ],
)
def test_files_of_torch(tmp_path, name, wrap, zipped):
    given, model = lenet(seed=1), lenet()
    saved = wrap(given.state_dict())
    torch.save(saved, tmp_path / name, _use_new_zipfile_serialization=zipped)
    assert load_initial(model, tmp_path / name) == ()
    assert torch.equal(flat(model), flat(given))


class Evil:
    """What a pickle with code is made of."""

    def __reduce__(self):
        return (print, ("the code ran",))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_code_is_refused_and_not_run(tmp_path, capfd, zipped):
    path = tmp_path / "x.pth"
    content = {**lenet().state_dict(), "evil": Evil()}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(JobError) as refused:
        load_initial(lenet(), path)
    assert str(refused.value) == (
        f"model.init: {path}: not a readable .pth file: it holds more than weights, or is damaged; "
        "save the model's state_dict()"
    )
    assert "the code ran" not in "".join(capfd.readouterr())


def test_a_whole_module_is_refused(tmp_path):
    torch.save(lenet(), tmp_path / "x.pt")
    with pytest.raises(JobError, match=r"holds more than weights, .*; save the model's state_dict"):
        load_initial(lenet(), tmp_path / "x.pt")


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors", "x.pth"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_truncated_files(tmp_path, name, share):
    given, path = lenet(), tmp_path / name
    if name == "x.npy":
        np.save(path, flat(given).numpy())
    elif name == "x.safetensors":
        save_file(given.state_dict(), path)
    else:
        torch.save(given.state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(JobError, match=rf"{name}: not a readable") as refused:
        load_initial(lenet(), path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(3)], "holds a list, expected a state dict"),
        ({"epoch": 3}, "nothing fits the model; it holds nothing"),
        ({"conv1.bias": torch.ones(64, dtype=torch.int8)}, r"conv1\.bias is torch\.int8, the mod"),
        ({"conv1.bias": torch.full((64,), torch.inf)}, r"conv1\.bias is not finite"),
    ],
)
def test_files_of_torch_that_do_not_fit(tmp_path, content, message):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(JobError, match=message):
        load_initial(lenet(), tmp_path / "x.pth")


@pytest.mark.parametrize("kind", ["npy", "safetensors", "pth"])
def test_the_backbone_alone(tmp_path, kind):
    given, model, path = lenet(seed=1), lenet(), tmp_path / f"x.{kind}"
    if kind == "npy":
        np.save(path, flat(given).numpy())
    elif kind == "pth":
        torch.save(given.state_dict(), path)
    else:
        save_file(given.state_dict(), path)
    head = model.fc3.weight.detach().clone()
    assert load_initial(model, path, "backbone") == ("fc3.weight", "fc3.bias")
    assert torch.equal(model.fc3.weight, head)
    assert torch.equal(model.fc2.bias, given.fc2.bias)


def test_a_model_of_one_layer_has_no_backbone(tmp_path):
    model = MODELS["linear"]().build((3,), 2)
    save_file(model.state_dict(), tmp_path / "x.safetensors")
    with pytest.raises(JobError, match=r"fits .*; its last layer is all that the model has"):
        load_initial(model, tmp_path / "x.safetensors", "backbone")
