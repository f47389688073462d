"""Labels of class 0 of a user's own data: they count, unless its Dataset says they are padding."""

import json
import sys

import pytest

MINE = """\
from dataclasses import dataclass, replace

from hpcfl.data.sources.arrays import Arrays


@dataclass(frozen=True, kw_only=True)
class Notes(Arrays):
    filled: int | None = None

    def load(self, seed):
        return replace(super().load(seed), loss="tokens", padding=self.filled)


class Padded(Notes):
    padded_text = True


class Padding(Arrays):
    def load(self, seed):
        return replace(super().load(seed), padding=0)
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


@pytest.mark.parametrize(("padding", "counted"), [("null", True), ("0", False)])
def test_labels_all_zero(padding, counted, kind, arrays, tmp_path, hpcfl):
    arrays(y=[0] * 40, y_test=[0] * 12)
    given = ["data.classes=4", f"data.filled={padding}", "--out", tmp_path / "run"]
    done = hpcfl("run", kind("Notes"), *given)
    assert done.code == 0, done.err
    lines = (tmp_path / "run/log.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert (last["train_loss"] > 0) == ("test_loss" in last) == ("test_accuracy" in last) == counted


def test_padding_that_would_count_is_refused(kind, refused):
    line = refused("check", "--data", kind("Padded"))
    assert line.endswith(
        "its padded_text is True, but the padding of its Dataset None, so that labels of padding "
        "would count; say padding=0"
    )


def test_padding_of_one_class_an_example_is_refused(kind, refused):
    line = refused("check", "--data", kind("Padding"))
    assert "its padding is 0, but its loss cross_entropy; expected None" in line
