"""Run the points of a sweep in this process, in which torch is loaded."""

from pathlib import Path

from hpcfl.job.load import load
from hpcfl.runs.layout import RunDir
from hpcfl.start.start import start
from hpcfl.tools.sweep.grid import Sweep
from hpcfl.tools.sweep.run_sweep import prepare


def run_points(sweep: Sweep, root: Path) -> None:
    """As ``hpcfl sweep SWEEP --out ROOT``, one after the other, without a report."""
    with RunDir(root) as folder:
        runs = prepare(sweep, folder)
    for run in runs:
        start(load(root / f"{run.point.name}.yaml"), run.folder.root)
    (root / "sweep.log").touch()
