"""A file or folder of the user's that has the name of a package is named in one line."""

import importlib.util
import sys

import pytest

from hpcfl.errors import JobError
from hpcfl.io.packages import installed, refuse_shadow
from hpcfl.tools.report.data_frame import read_log
from hpcfl.tools.report.plots.figure import check_plot


@pytest.fixture
def first(tmp_path, monkeypatch):
    """A folder that Python searches first."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def found(name):
    importlib.invalidate_caches()
    return importlib.util.find_spec(name)


@pytest.mark.parametrize("content", ["folder", "package", "module"])
def test_what_no_installation_has_put_there(first, content):
    name = "a_package_of_none"
    assert not installed(name)
    refuse_shadow(name)
    place = first / (f"{name}.py" if content == "module" else name)
    if content == "module":
        place.touch()
    else:
        place.mkdir()
        if content == "package":
            (place / "__init__.py").touch()
    assert found(name) is not None
    assert not installed(name)
    with pytest.raises(JobError) as caught:
        refuse_shadow(name)
    assert str(caught.value) == (
        f"{place}: Python finds it in place of the package {name}; rename it, or take its folder "
        "off Python's path"
    )


@pytest.mark.parametrize("metadata", ["own-1.0.dist-info", "own.egg-info", "own-1.0.egg-info"])
def test_a_package_that_was_installed_into_a_folder_of_the_path(first, metadata):
    """As by ``pip install --target``, or by an environment module of a cluster."""
    (first / "own").mkdir()
    (first / "own/__init__.py").touch()
    (first / metadata).mkdir()
    listed, text = {
        "own-1.0.dist-info": ("RECORD", "own/__init__.py,,\n"),
        "own.egg-info": ("SOURCES.txt", "own/__init__.py\n"),
        "own-1.0.egg-info": ("top_level.txt", "own\n"),  # without a list of files, as of Debian
    }[metadata]
    (first / metadata / listed).write_text(text)
    assert found("own") is not None
    assert installed("own")
    refuse_shadow("own")


def test_packages_behind_the_library_of_python():
    for name in ("torch", "matplotlib"):
        assert installed(name)
        refuse_shadow(name)


def hide(monkeypatch, folder, package):
    """Put an empty package of the same name first, as if the true one were not imported yet."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, package, raising=False)
    found(package)


JOB = """
data: {kind: huggingface, path: rows.parquet}
model: {name: linear}
cohort: {kind: cyclic, size: 1}
algorithm: {name: fedavg}
local: {lr: 0.1, steps: 1}
rounds: 1
"""


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("datasets", "check job.yaml --data"),
        ("pyarrow", "check job.yaml --data"),
        ("sklearn", "check quickstart --data"),
        ("tensorboard", "check quickstart callbacks=[tensorboard]"),
        ("wandb", "check quickstart callbacks=[wandb]"),
        ("mlflow", "check quickstart callbacks=[mlflow]"),
        ("mpi4py", "run quickstart comm.backend=mpi"),
    ],
)
def test_a_command_that_needs_a_hidden_package(first, monkeypatch, refused, package, command):
    monkeypatch.chdir(first)
    (first / "job.yaml").write_text(JOB)
    (first / "rows.parquet").touch()
    hide(monkeypatch, first, package)
    assert refused(*command.split()).startswith(f"JobError: {first / package}: Python finds it in")


def test_the_packages_of_a_data_frame_and_of_a_figure(first, monkeypatch):
    hide(monkeypatch, first, "pandas")
    with pytest.raises(JobError, match="finds it in place of the package pandas"):
        read_log(first)
    hide(monkeypatch, first, "matplotlib")
    with pytest.raises(JobError, match="finds it in place of the package matplotlib"):
        check_plot(first / "x.png")
