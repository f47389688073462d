"""Where real data lies, if there is any: ../shared/data, or the folder in HPCFL_REAL_DATA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(
    os.environ.get("HPCFL_REAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


def real(name: str) -> Path:
    """The file of that name; the test is skipped where it is absent."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"no real data: {path} is absent")
    return path


def cifar10(config: pytest.Config) -> Path:
    """A folder with cifar10.npz."""
    return _unpacked(config, "cifar10", "cifar10_1.med.npz")


def emnist_letters(config: pytest.Config) -> Path:
    """A folder with emnist_letters.npz."""
    return _unpacked(config, "emnist_letters", "emnist_letters.med.npz")


def mnist(config: pytest.Config) -> Path:
    """A folder with mnist.npz."""
    return _unpacked(config, "mnist", "mnist.med.npz")


def _unpacked(config: pytest.Config, name: str, packed: str) -> Path:
    """A folder with NAME.npz, unpacked once into pytest's cache."""
    real(packed)
    cache = config.cache
    assert cache is not None
    folder = cache.mkdir("real_data")
    if not (folder / f"{name}.npz").is_file():
        part = folder / f"part-{os.getpid()}"
        subprocess.run([sys.executable, real("unpack.py"), part, name], check=True)
        (part / f"{name}.npz").rename(folder / f"{name}.npz")
        part.rmdir()
    return folder
