"""The private Slurm also comes up on a machine that is to have no GPUs."""

import subprocess

from tests.forked import PATIENCE_S, free_ports
from tests.slurm.conftest import HERE


def test_a_cluster_without_gpus(slurm, tmp_path):
    # No pipes: the daemons would hold them open.
    words = (tmp_path, str(free_ports(3)), "2", "4", "0")
    up = subprocess.run(
        [HERE / "cluster_up.sh", *words],
        env=slurm.env, check=False, stdout=subprocess.DEVNULL, timeout=PATIENCE_S,
    )  # fmt: skip
    assert up.returncode == 0
    subprocess.run([HERE / "cluster_down.sh", tmp_path], env=slurm.env, check=True)
