"""The jobs and sweeps of the repository, each sweep read once."""

from functools import cache
from pathlib import Path

from hpcfl.tools.sweep.grid import Sweep, read_sweep

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "jobs").rglob("*.yaml"))
SWEEPS = [path for path in FILES if "\ngrid:" in path.read_text()]
JOBS = [path for path in FILES if path not in SWEEPS]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def sweep(path: Path) -> Sweep:
    return read_sweep(path)
