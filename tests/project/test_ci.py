"""CI's own script looks before it leaps."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/run"


PROGRAMS = ("slurmctld", "slurmd", "srun", "strace", "ip")


@pytest.mark.parametrize("missing", ["srun", "strace"])
def test_all_but_one_is_not_all(tmp_path, missing):
    """With nobody to install it."""
    for name in {*PROGRAMS, "dirname", "id"} - {missing}:
        tool = tmp_path / name
        tool.write_text("#!/bin/sh\necho .\n")
        tool.chmod(0o755)
    done = subprocess.run(
        [shutil.which("bash"), str(SCRIPT)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f".ci/run: missing: {missing}; only root")
