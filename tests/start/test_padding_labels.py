"""Labels of class 0, which the loss of texts takes for padding: the data must say that they are."""

import sys

import pytest

MINE = """\
from dataclasses import dataclass, replace

from hpcfl.data.sources.arrays import Arrays


@dataclass(frozen=True, kw_only=True)
class Notes(Arrays):
    first: int = 0

    def load(self, seed):
        data = super().load(seed)
        moved = [part._replace(labels=part.labels + self.first) for part in (data.train, data.test)]
        classes = data.classes + self.first
        return replace(data, train=moved[0], test=moved[1], classes=classes, loss="tokens")


class Padded(Notes):
    padded_text = True
"""


@pytest.fixture
def kind(tmp_path, job, monkeypatch):
    """Let the job have data of this class."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)

    def named(name):
        job.write_text(job.read_text().replace("kind: arrays", f"kind: mine.{name}"))
        return job

    yield named
    sys.modules.pop("mine", None)


def test_classes_from_zero_are_refused(kind, refused):
    line = refused("check", "--data", kind("Notes"))
    assert (
        "data.kind: mine.Notes: 10 of its 40 training labels are 0, which the loss tokens" in line
    )
    assert line.endswith("where it is padding, say padded_text = True in Notes")


def test_tests_of_class_zero_are_refused(kind, arrays, refused):
    arrays(y=[1, 2, 3, 1] * 10)
    assert ": 3 of its 12 test labels are 0" in refused("check", "--data", kind("Notes"))


@pytest.mark.parametrize(("name", "first"), [("Notes", 1), ("Padded", 0)])
def test_classes_from_one_or_said_padding_train(name, first, kind, tmp_path, hpcfl):
    done = hpcfl("run", kind(name), f"data.first={first}", "--out", tmp_path / "run")
    assert done.code == 0, done.err
