"""The script of `make gpu` installs the wheels that the user gives, also those that come later."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run.sh")
# A python with torch and no other package, whose pip refuses a folder that is there.
PYTHON = """#!/bin/bash
case "$1 $2" in
  "-c import torch") exit 0 ;;
  "-m pip")
    while [ "$1" != --target ]; do shift; done
    [ ! -e "$2" ] || exit 1
    mkdir -p "$2"
    for wheel in "${@:3}"; do cp "$wheel" "$2/$(basename "$wheel" .whl)"; done
    echo "${@:3}" >>installed
    ;;
  *) echo "ModuleNotFoundError: No module named 'pydantic'" >&2; exit 1 ;; # which ends the script
esac
"""


@pytest.fixture
def here(tmp_path):
    """A checkout with the script, a python and a folder for wheels."""
    for folder in ("tests/gpu", "wheels"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "tests/gpu")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def play(here):
    """Play the script up to the packages that are missing; the calls of pip so far."""
    done = subprocess.run(
        [here / "tests/gpu/run.sh"], env={**os.environ, "PYTHON": str(here / "python")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "lacks a package that hpcfl needs" in done.stderr
    assert "into the folder wheels: ModuleNotFoundError: No module named 'pydantic'" in done.stderr
    installed = here / "installed"
    return installed.read_text().splitlines() if installed.exists() else []


def test_wheels_are_installed_again_when_they_change(here):
    assert play(here) == []
    (here / "wheels/a.whl").write_text("a")
    first = play(here)
    assert first == ["wheels/a.whl"]
    assert play(here) == first
    (here / "wheels/b.whl").write_text("b")
    os.utime(here / "wheels/b.whl", (0, 0))  # as a copy that keeps its date
    assert play(here) == [*first, "wheels/a.whl wheels/b.whl"]
    (here / "wheels/a.whl").write_text("newer")
    assert len(play(here)) == 3
    assert (here / "build/gpu-packages/a").read_text() == "newer"
    assert len(play(here)) == 3
