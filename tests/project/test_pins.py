"""setup.py's ranges, constraints.txt's pins and environment.yml's conda packages agree."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {"pytorch-gpu": "torch", "matplotlib-base": "matplotlib"}
NOT_OURS = {"python", "pip"}


@pytest.fixture
def metadata(monkeypatch):
    """What setup.py hands to setuptools."""
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: given.update(keywords))
    exec(compile((ROOT / "setup.py").read_text(), ROOT / "setup.py", "exec"),  # noqa: S102
         {"__file__": str(ROOT / "setup.py")})  # fmt: skip
    return given


@pytest.fixture
def ranges(metadata):
    named = [*metadata["install_requires"], *chain(*metadata["extras_require"].values())]
    return [Requirement(line) for line in named]


@pytest.fixture
def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pin) == 2 for pin in found), "every line is NAME==VERSION"
    return {canonicalize_name(name): version for name, version in found}


def test_every_dependency_is_pinned_inside_its_range(ranges, pins):
    for requirement in ranges:
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} has no pin in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement}, pinned to {version}"


def test_every_pin_is_a_dependency(ranges, pins):
    assert set(pins) == {canonicalize_name(r.name) for r in ranges} | {"setuptools"}


def test_the_build_takes_the_pinned_setuptools(pins):
    """All else about the package is said once, in setup.py."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project) == {"build-system"}
    (needed,) = map(Requirement, project["build-system"]["requires"])
    assert needed.specifier.contains(pins[needed.name])


def test_conda_has_the_same_versions(metadata, pins):
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    named = [p.split("=") for p in environment["dependencies"] if p not in NOT_OURS]
    conda = {CONDA_NAMES.get(name, name): version for name, version in named}
    assert re.fullmatch(r"3\.1[1-9]", conda.pop("python"))
    assert conda == {name: pins[name] for name in conda}
    extras = metadata["extras_require"]
    taken = (extras[name] for name in ("mpi", "demo", "plot", "images", "complete"))
    needed = [*metadata["install_requires"], *chain(*taken)]
    assert {Requirement(line).name for line in needed} <= set(conda)


def test_make_installs_torch_by_its_pin(pins):
    """Anything looser may bring a CUDA build."""
    assert f"torch=={pins['torch']} " in (ROOT / "Makefile").read_text()


def test_the_older_pair_of_a_gpu_machine_is_in_range(ranges):
    wide = {r.name: r.specifier for r in ranges}
    assert wide["torch"].contains("2.11.0")
    assert wide["numpy"].contains("2.5.2")


def test_the_version_is_the_package_s(metadata):
    import hpcfl

    assert metadata["version"] == hpcfl.__version__
