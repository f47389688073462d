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
    """A folder with cifar10.npz, unpacked once into pytest's cache."""
    real("cifar10_1.med.npz")
    cache = config.cache
    assert cache is not None
    folder = cache.mkdir("real_data")
    if not (folder / "cifar10.npz").is_file():
        part = folder / f"part-{os.getpid()}"
        subprocess.run([sys.executable, real("unpack.py"), part, "cifar10"], check=True)
        (part / "cifar10.npz").rename(folder / "cifar10.npz")
        part.rmdir()
    return folder
