"""What is checked before round 1 is the same for every command that builds a job."""

import pytest

NORMED = """\
from torch import nn


def normed():
    return nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 4))
"""
REFUSED = {
    "the model": ("model={name: module, of: with_batch_norm.normed}", "its layer '0' "),
    "the scores": ("evaluate.best=true", "evaluate.best: this data has no test set for the"),
    "the data": (
        "precision=float32",
        "data: holds numbers up to 1e+39, which are infinite in floa",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_every_command_alike(what, job, arrays, refused, tmp_path, monkeypatch):
    (tmp_path / "with_batch_norm.py").write_text(NORMED)
    monkeypatch.syspath_prepend(tmp_path)
    large = {"x": [[1e39, 0.0, 0.0]] * 40} if what == "the data" else {}
    arrays(x_test=None, y_test=None, **large)
    setting, line = REFUSED[what]
    told = {refused(*command, job, setting) for command in (["run"], ["check", "--data"], ["plan"])}
    (said,) = told
    assert line in said
