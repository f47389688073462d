"""The quick form of ``hpcfl bench chaos``, through its command line."""

import subprocess
import sys

from tests.parallel.harness import environment, find_mpirun

KILLS = 20


def test_killed_over_and_over_again(tmp_path):
    find_mpirun()
    folder = tmp_path / "chaos"
    command = [sys.executable, "-m", "hpcfl", "bench", "chaos", "--kills", str(KILLS)]
    done = subprocess.run(
        [*command, "--dir", folder], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "disagreements  0\n" in done.stdout
    assert f"{KILLS} killed" in done.stdout
    assert not folder.exists()
