"""The scripts of examples/ run, and what they record is worked out by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANE = ["data.dim=2", "data.heterogeneity=1.0", "seed=8", "rounds=8"]


@pytest.mark.slow
def test_drift(tmp_path):
    """The figures of docs/papers.md."""
    script, sweep = ROOT / "examples/drift.py", ROOT / "jobs/papers/slides_figure1.yaml"
    command = [sys.executable, script, sweep, "--only", "fedavg,mimemom", *PLANE, "local.lr=0.4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["fedavg", "0.2472", "0.8554"],
        ["mimemom", "0.06586", "0.1182"],
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["drift.png"]
    done = subprocess.run(
        [sys.executable, script, "quickstart"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == ("JobError: fedhbm: expected data.kind quadratics with data.dim=2\n")
