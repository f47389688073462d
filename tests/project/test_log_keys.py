"""The table of docs/reference/log.md has exactly the keys that a run writes."""

import re
from pathlib import Path

import pytest

from tests.algorithms.play import play, softmax_problem, tree

pytestmark = pytest.mark.usefixtures("own_process")

PAGE = Path(__file__).parents[2] / "docs/reference/log.md"
ON_SEVERAL_RANKS = {"busy_s", "busy_quantiles_s", "slowest_rank", "imbalance"}
ON_A_GPU = {"device_bytes"}
OF_DEVICES = {"asked", "simulated_s"}  # tests/start/test_simulated_time.py
OF_DP_FEDAVG = {"epsilon"}  # tests/evaluation/test_privacy.py
OF_POWER_OF_CHOICE = {"candidates"}  # tests/engine/test_choice.py
OF_SOME = ON_SEVERAL_RANKS | ON_A_GPU | OF_DEVICES | OF_DP_FEDAVG | OF_POWER_OF_CHOICE


def test_the_table_of_the_log_is_complete(tmp_path):
    """Of a plain run; tests/parallel holds those of several ranks to be there."""
    table = PAGE.read_text().split("## Keys of the log")[1].split("## ")[0]
    named = [
        key for row in re.findall(r"^\| (`.+?) \|", table, re.M) for key in row.split("`")[1::2]
    ]
    job = tree(tmp_path, softmax_problem(), algorithm={"name": "scaffold"}, rounds=2)
    found = set().union(*play(tmp_path, job).log)
    found.add("crc32")  # which the reader of the log takes away
    scores = {key for key in found if key.startswith("test_")}
    assert set(named) - OF_SOME == found - scores
    assert len(named) == len(set(named))
