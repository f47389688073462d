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


@pytest.mark.parametrize("kind", ["arrays", "table"])
def test_labels_of_one_class_are_a_warning(kind, job, arrays, tmp_path, hpcfl):
    """Every model learns to say that class, with a loss of 0."""
    said = "warning: data.kind: {}: all 40 training labels are of class {}: there is nothing to"
    settings, found = ["model={name: linear}"], said.format(kind, 0)
    if kind == "arrays":
        arrays(y=[1] * 40, y_test=[0, 1] * 6)
        found = said.format(kind, 1)
    else:
        path = tmp_path / "one.csv"
        path.write_text("x,y\n" + "".join(f"{k},only\n" for k in range(40)))
        settings += [f"data={{kind: table, path: {path}, label: y, clients: 4}}"]
    for command in (["check", job, "--data"], ["run", job, "--out", tmp_path / "run"]):
        done = hpcfl(*command, *settings)
        assert done.code == 0
        assert found in done.text + "".join(done.err)
    arrays()
    assert "training labels are" not in hpcfl("check", "--data", job).text
