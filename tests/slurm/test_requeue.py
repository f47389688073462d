"""hpcfl itself under slurm/run.sh: stopped, requeued and resumed, a job ends as if undisturbed."""

import json
import time
from pathlib import Path

import numpy as np

from hpcfl.account import measured

ROOT = Path(__file__).parents[2]
JOB = """\
data: {kind: arrays, path: ten.npz}
model: {name: linear}
cohort: {kind: uniform, size: 4}
algorithm: {name: scaffold}
local: {epochs: 1, batch_size: 8, lr: 0.1}
rounds: 300
evaluate: {every: 100, last: 1}
checkpoint: {every: 100000, keep: 2}
seed: 7
"""


def log_of(run):
    """What the run has logged so far, without its timings."""
    path = run / "log.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{k: v for k, v in e.items() if not measured(k)} for e in entries]


def final_model(slurm, run):
    slurm.call("hpcfl", "export", str(run), "-o", f"{run}.npz")
    return np.load(f"{run}.npz")["x"]


def test_a_requeued_job_gives_the_same_bits(slurm, tmp_path):
    stopped, undisturbed = tmp_path / "stopped", tmp_path / "undisturbed"
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 8)).astype(np.float32)
    y = x.argmax(1)
    np.savez(tmp_path / "ten.npz", x=x, y=y, client=np.arange(160) % 10, x_test=x, y_test=y)
    (tmp_path / "job.yaml").write_text(JOB)
    job = slurm.sbatch(
        "--ntasks=2", str(ROOT / "slurm/run.sh"), "job.yaml", cwd=tmp_path, HPCFL_OUT=str(stopped)
    )
    while len(log_of(stopped)) < 5:
        assert slurm.show(job)["JobState"] in ("PENDING", "RUNNING"), "it ended by itself"
        time.sleep(0.02)
    slurm.call("scancel", "--signal=USR1", job)  # the steps, as --signal does
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert [entry["round"] for entry in log_of(stopped)] == list(range(301))

    slurm.call("hpcfl", "run", "job.yaml", "--out", str(undisturbed), cwd=tmp_path)
    assert log_of(stopped) == log_of(undisturbed)
    np.testing.assert_array_equal(final_model(slurm, stopped), final_model(slurm, undisturbed))
