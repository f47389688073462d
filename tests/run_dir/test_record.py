"""Runs of earlier versions, beside those of this one."""

import pytest

from hpcfl.job.settings import group_by_seed
from hpcfl.run_dir.record import read_run
from tests.rundirs import resolved

JOB = """
rounds: 2
seed: SEED
algorithm: {name: fedavg}
local: {lr: 0.1MORE}
evaluate: {last: 0}
"""


@pytest.mark.parametrize(
    ("more", "groups"),
    [
        (", momentum: 0.0, nesterov: false", [[0, 1]]),
        (", momentum: 0.9, nesterov: false", [[0], [1]]),
    ],
)
def test_a_run_from_before_local_momentum_had_none(tmp_path, more, groups):
    """So that a mean over seeds takes the runs of both versions."""
    for seed, keys in enumerate(("", more)):
        (tmp_path / f"{seed}").mkdir()
        text = JOB.replace("SEED", f"{seed}").replace("MORE", keys)
        (tmp_path / f"{seed}" / "job.yaml").write_bytes(resolved(text))
    runs = [read_run(tmp_path / f"{seed}") for seed in range(2)]
    assert runs[0].settings["local.momentum"] == 0.0
    assert group_by_seed([run.settings for run in runs]) == groups
