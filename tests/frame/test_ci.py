"""CI's own script looks before it leaps."""

import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / ".ci/run"


def test_a_part_of_slurm_is_not_slurm(tmp_path):
    """With slurmctld and slurmd but no srun, and nobody to install it."""
    for name in ("slurmctld", "slurmd", "dirname", "id"):
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
    assert done.stderr.startswith(".ci/run: Slurm is missing (no srun) and only root")
