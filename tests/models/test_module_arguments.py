"""The arguments of a torch module that a job names: model: {name: module, arguments: {...}}."""

import pytest
import torch
import yaml

from hpcfl import check as check_job
from hpcfl import load_model
from hpcfl import run as run_job
from hpcfl.errors import JobError
from hpcfl.models.module import Module
from tests import vision

NET = """\
from torch import nn

class Net(nn.Sequential):
    def __init__(self, outputs, *, width: int, scales=[1.0], options=None):
        assert list(scales) == scales
        if options is not None:
            options.clear()  # which must not change the job
        super().__init__(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, outputs))

def anything(outputs, **more):
    return Net(outputs, **more)

def nothing():
    return nn.Linear(3, 4)
"""


@pytest.fixture(autouse=True)
def net(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)


def section(of="own_net.Net", **arguments):
    return "model=" + yaml.safe_dump(
        {"name": "module", "of": of, "arguments": arguments}, default_flow_style=True, width=999
    )


@pytest.mark.parametrize("of", ["own_net.Net", "own_net.anything"])
def test_a_run_with_arguments(job, tmp_path, hpcfl, refused, own_process, of):
    """Kept in job.yaml, from which resume, export and load_model make the same module."""
    run, export = tmp_path / "run", tmp_path / "x.safetensors"
    arguments = {"width": 7, "scales": [0.5, 2.0], "options": {"a": 1}}
    done = hpcfl("run", job, section(of, **arguments), "rounds=2", "--out", run)
    assert done.code == 0, done.err
    assert yaml.safe_load((run / "job.yaml").read_text())["model"]["arguments"] == arguments
    assert hpcfl("export", run, "--state-dict", export).code == 0
    assert hpcfl("resume", run, "rounds=3").code == 0
    assert "is 7 in" in refused("resume", run, "model.arguments.width=8")
    assert load_model(run)[0].out_features == 7


def test_an_argument_is_a_key_like_any_other(job, hpcfl):
    """Of 3 features and 4 classes: 3w + w + 4w + 4 parameters."""
    for width in (2, 5):
        settings = [section(), f"model.arguments.width={width}"]
        assert check_job(job, settings, load=True).parameters == 8 * width + 4
        shown = hpcfl("check", job, *settings).text
        assert f"module: of own_net.Net, arguments {{width: {width}}}" in shown


@pytest.mark.parametrize(
    ("of", "arguments", "line"),
    [
        ("Net", {}, "model.of: own_net.Net needs width; add model.arguments: {width: ...}"),
        (
            "Net",
            {"scale": 3},
            'model.arguments: own_net.Net has no "scale" (it has width, scales, options); did you '
            "mean scales?",
        ),
        (
            "Net",
            {"width": 3, "outputs": 5},
            "model.arguments.outputs: own_net.Net gets it from the data of the job; leave it out",
        ),
        (
            "nothing",
            {"width": 3},
            'model.arguments: own_net.nothing has no "width" (it has no arguments of its own)',
        ),
    ],
)
def test_arguments_are_compared_with_the_signature(job, refused, of, arguments, line):
    found = refused("check", job, section(f"own_net.{of}", **arguments), "--data")
    assert found == f"JobError: {line}"


def test_a_number_in_quotes(job, refused):
    line = refused("check", job, section(width="100"), "--data")
    assert "model.arguments.width: found the text '100', expected a number" in line


def test_arguments_are_a_section(job, refused):
    line = refused("check", job, "model={name: module, of: own_net.Net, arguments: 3}")
    assert "model.arguments: found 3, expected a section" in line


def test_arguments_of_a_class_that_is_passed(job, tmp_path, own_process):
    """They are checked before a file is written; a module that was made before takes none."""
    import own_net

    keys = {"model.arguments.scales": (0.5, 2), "model.arguments.width": 7, "rounds": 1}
    result = run_job(job, keys, model=own_net.Net, out=tmp_path / "run")
    assert result.model()[0].out_features == 7
    with pytest.raises(JobError, match=r"Net needs width; add model\.arguments"):
        run_job(job, model=own_net.Net, out=tmp_path / "other")
    with pytest.raises(JobError, match=r"model\.arguments: the model is a module that was"):
        run_job(job, keys, model=torch.nn.Linear(3, 4), out=tmp_path / "other")


@pytest.mark.parametrize("value", ["/etc/passwd", "https://a.b/c", "..", {"a": 1}, [2, ["a/b"]]])
def test_a_class_of_a_package_takes_no_path_and_no_address(refused, job, value):
    line = refused("check", job, section("torch.nn.Linear", in_features=value))
    assert "model.arguments.in_features: found " in line
    assert "torch.nn.Linear is not your own" in line


def test_a_class_of_a_package_takes_numbers_and_names():
    given = {"d_model": 4, "nhead": 2, "dropout": 0.0, "activation": "gelu", "bias": True}
    Module(of="torch.nn.TransformerEncoderLayer", arguments=given).require_code()


@pytest.mark.parametrize("of", ["timm.create_model", "timm.models.resnet18", "zoo.resnet18"])
def test_no_function_of_timm_loads_from_an_address_or_saves_to_a_folder(
    tmp_path, monkeypatch, refused, job, of
):
    """It would save what is at any address under its name in any folder, as on Python's path."""
    vision.torchvision()  # which timm imports
    pytest.importorskip("timm")
    (tmp_path / "zoo.py").write_text("from timm.models import resnet18\n")
    monkeypatch.syspath_prepend(tmp_path)
    source, folder = tmp_path / "startup.py", tmp_path / "saved"
    source.touch()
    arguments = {
        "pretrained": True,
        "pretrained_cfg": {"url": source.as_uri(), "hf_hub_id": ""},
        "cache_dir": str(folder),
    }
    if of == "timm.create_model":
        arguments["model_name"] = "resnet18"
    line = refused("check", "--data", job, section(of, **arguments))
    assert "is not your own" in line or "of the installed package timm" in line
    assert not folder.exists()
