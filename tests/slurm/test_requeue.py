"""hpcfl itself under slurm/run.sh: stopped, requeued and resumed, a job ends as if undisturbed."""

import json
import subprocess
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
JOB = """\
data: {kind: arrays, path: ten.npz}
model: {name: linear}
cohort: {kind: uniform, size: 4}
algorithm: {name: scaffold}
local: {epochs: 1, batch_size: 8, lr: 0.1}
rounds: 1000
evaluate: {every: 100, last: 1}
checkpoint: {every: 100000, keep: 2}
seed: 7
"""


def rounds_of(run):
    lines = (run / "log.jsonl").read_text().splitlines() if (run / "log.jsonl").exists() else []
    return len(lines)


def final_model(slurm, run):
    slurm.call("hpcfl", "export", str(run), "-o", str(run.parent / f"{run.name}.npz"))
    return np.load(run.parent / f"{run.name}.npz")["x"]


def test_a_requeued_job_gives_the_same_bits(slurm, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 8)).astype(np.float32)
    y = x.argmax(1)
    np.savez(tmp_path / "ten.npz", x=x, y=y, client=np.arange(160) % 10, x_test=x, y_test=y)
    (tmp_path / "job.yaml").write_text(JOB)
    job = slurm.sbatch(
        "--ntasks=2", str(ROOT / "slurm/run.sh"), "job.yaml", cwd=tmp_path, HPCFL_OUT="stopped"
    )
    while rounds_of(tmp_path / "stopped") < 20:
        assert slurm.show(job)["JobState"] in ("PENDING", "RUNNING"), "it ended by itself"
        time.sleep(0.02)
    slurm.call("scancel", "--signal=USR1", job)  # the steps, as --signal does
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")

    subprocess.run(
        ["hpcfl", "run", "job.yaml", "--out", "undisturbed"],
        env=slurm.env, cwd=tmp_path, check=True,
    )  # fmt: skip
    logged = [json.loads(line) for line in (tmp_path / "stopped/log.jsonl").open()]
    assert [entry["round"] for entry in logged] == list(range(1001))
    np.testing.assert_array_equal(
        final_model(slurm, tmp_path / "stopped"), final_model(slurm, tmp_path / "undisturbed")
    )
