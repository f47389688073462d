"""The table of docs/reference/algorithms.md has the numbers that the dry round finds."""

import re
from pathlib import Path

import pytest
import torch

from hpcfl.algorithms import ALGORITHMS
from hpcfl.algorithms.facts import Facts
from hpcfl.engine.dry_round import dry_round, traffic

P = 1000
ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (`[^|]*`) \| ([^|]* / [^|]*) \| ([012]) \|", re.MULTILINE)
ROWS = [
    (name, sent, int(kept))
    for names, all_sent, kept in ROW.findall((ROOT / "docs/reference/algorithms.md").read_text())
    for known in [re.findall("`([a-z_]+)`", names)]
    for name, sent in zip(known, (all_sent.split(", ") * len(known))[: len(known)], strict=True)
]


REQUIRED = {  # what has no default
    "dpfedavg": {"clip": 1.0, "noise": 1.0},
    "streaming_diloco": {"fragments": 4},
}


def test_there_are_some():
    assert len(ROWS) >= 20


@pytest.mark.parametrize(("name", "sent", "kept"), ROWS, ids=[row[0] for row in ROWS])
def test_vectors_sent_and_kept(name, sent, kept):
    algorithm = ALGORITHMS[name](**REQUIRED.get(name, {}))
    schema = dry_round(algorithm, P, torch.float64)
    measured = [sent / (8 * P) for sent in traffic(algorithm, schema)]
    past = str(len(algorithm.alpha)) if name == "fedmim" else ""
    for said, vectors in zip(sent.split(" / "), measured, strict=True):
        if said == "less":
            assert vectors < 0.5
        else:
            assert round(vectors) == sum(int(n.replace("J", past)) for n in said.split(" + "))
    assert sum(leaf.numel() == P for leaf in schema.state) == kept


def test_the_methods_that_allow_plain_sgd_alone():
    """The table names all of them, those that do with one option too, and no other."""
    page = (ROOT / "docs/reference/algorithms.md").read_text()
    table = page.partition("Some methods allow plain SGD alone")[2].partition("The others")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    refusing = {
        name
        for name, cls in ALGORITHMS.items()
        for keys in ({}, {"mu": 0.1})[: 1 + (name == "fednova")]
        if refuses_momentum(cls(**REQUIRED.get(name, {}), **keys))
    }
    assert named - {"mu"} == refusing


def refuses_momentum(algorithm):
    try:
        algorithm.resolve(Facts(weights="uniform", momentum=0.5))
    except ValueError as e:
        return "takes plain SGD alone" in str(e)
    return False
