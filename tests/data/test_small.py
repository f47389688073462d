import sys

import numpy as np
import pytest
import torch
from sklearn import datasets

from hpcfl.data import SOURCES
from hpcfl.data.sources.concrete import Concrete
from hpcfl.data.sources.digits import Digits
from hpcfl.data.sources.quadratics import Quadratics
from hpcfl.data.split import partition_examples
from hpcfl.errors import DataError, JobError
from tests.real_data import real


def test_sources_go_by_their_files_names():
    assert all(
        source.__module__ == f"hpcfl.data.sources.{kind}"
        and source.__name__.lower() == kind.replace("_", "")
        for kind, source in SOURCES.items()
    )


def test_digits():
    dataset = Digits().load(0)
    assert dataset.train.inputs.shape == (1438, 64)
    assert dataset.test.inputs.shape == (359, 64)
    assert (dataset.train.inputs.min(), dataset.train.inputs.max()) == (0, 1)
    assert torch.bincount(dataset.train.labels).tolist() == (
        torch.bincount(Digits().load(1).train.labels).tolist()
    )
    images = Digits(flat=False).load(0).train.inputs
    assert images.shape == (1438, 1, 8, 8)
    assert torch.equal(images.flatten(1), dataset.train.inputs)


def write_table(tmp_path, rows):
    header = "\ufeffCement,b,c,d,e,f,g,h,Strength"
    np.savetxt(
        tmp_path / "Concrete_Data.csv",
        rows,
        "%.17g",
        ",",
        header=header,
        comments="",
        encoding="utf8",
    )


ROWS = np.random.default_rng(0).uniform(0, 500, (12, 9))


def test_concrete_is_standardised(tmp_path):
    write_table(tmp_path, ROWS)
    dataset = Concrete(root=str(tmp_path)).load(0)
    table = torch.cat(dataset.train, 1)
    assert table.dtype == torch.float64
    assert torch.allclose(table.mean(0), torch.zeros(9, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(table.var(0, correction=0), torch.ones(9, dtype=torch.float64))
    expected = (ROWS[:, 8] - ROWS[:, 8].mean()) / ROWS[:, 8].std()
    assert np.allclose(dataset.train.labels[:, 0], expected)
    assert torch.equal(dataset.test.inputs, dataset.train.inputs)  # the objective
    assert (dataset.loss, dataset.classes) == ("squared", None)


def test_concrete_can_keep_rows_for_testing(tmp_path):
    write_table(tmp_path, ROWS)
    whole = Concrete(root=str(tmp_path)).load(0).train
    split = Concrete(root=str(tmp_path), test_every=5).load(0)
    assert torch.equal(split.test.inputs, whole.inputs[[4, 9]])
    assert len(split.train.labels) == 10


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:, :8], "12 rows of 8 columns"),
        (ROWS[:1], "1 rows of 9 columns"),
        (np.where(ROWS > 400, np.nan, ROWS), "finite numbers"),
        (np.concatenate([ROWS[:, :8], np.ones((12, 1))], 1), "column 9 never changes"),
    ],
)
def test_wrong_tables(tmp_path, rows, message):
    write_table(tmp_path, rows)
    with pytest.raises(DataError, match=message):
        Concrete(root=str(tmp_path)).load(0)


def test_missing_and_garbled_tables(tmp_path):
    with pytest.raises(
        DataError, match=r"Concrete_Data\.csv: not found; put it there, set data.root"
    ):
        Concrete(root=str(tmp_path)).load(0)
    for text in (b"a,b\n1,x\n", b"a\n1,2\n1\n", b"\xff\xfe\x00"):
        (tmp_path / "Concrete_Data.csv").write_bytes(text)
        with pytest.raises(DataError, match=r"Concrete_Data\.csv: not a readable table") as caught:
            Concrete(root=str(tmp_path)).load(0)
        assert "\n" not in str(caught.value)


def test_real_concrete():
    dataset = Concrete(root=str(real("Concrete_Data.csv").parent)).load(0)
    assert dataset.train.inputs.shape == (1030, 8)
    design = torch.cat([dataset.train.inputs, torch.ones(1030, 1)], 1)
    solution = torch.linalg.lstsq(design, dataset.train.labels).solution
    residual = design @ solution - dataset.train.labels
    assert float(residual.square().mean()) == pytest.approx(1 - 0.6155, abs=1e-4)  # its known R^2


def test_two_scalar_quadratics_are_the_slides():
    config = Quadratics(heterogeneity=10.0, spread=0.5)
    dataset = config.load(3)
    expected = torch.tensor([[[1.5], [-10.0]], [[0.5], [10.0]]], dtype=torch.float64)
    assert torch.allclose(dataset.train.inputs, expected)
    assert [list(rows) for rows in partition_examples(config, dataset, 0).rows] == [[0], [1]]


def test_gradients_at_the_optimum_have_mean_zero_and_root_mean_square_g():
    config = Quadratics(clients=9, dim=4, heterogeneity=3.0, curvature=2.0, spread=0.25)
    curvature, linear = config.load(0).train.inputs.unbind(1)
    assert torch.allclose(linear.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-12)
    assert float(linear.square().sum(1).mean()) == pytest.approx(9.0)
    assert float(curvature.mean()) == pytest.approx(2.0)
    assert float(curvature.max()) == 2.5
    assert torch.equal(config.load(0).train.inputs, config.load(0).train.inputs)
    assert not torch.equal(config.load(0).train.inputs, config.load(1).train.inputs)


def test_a_single_quadratic_has_nobody_to_differ_from():
    with pytest.raises(JobError, match="a single client"):
        Quadratics(clients=1).load(0)
    alone = Quadratics(clients=1, heterogeneity=0.0).load(0)
    assert alone.train.inputs.tolist() == [[[1.0], [0.0]]]


def test_digits_are_those_of_scikit_learn(monkeypatch):
    """Read from its file, or by itself where there is no such file."""
    load, calls = datasets.load_digits, []
    monkeypatch.setattr(datasets, "load_digits", lambda **how: calls.append(1) or load(**how))
    ours = Digits().load(0)
    assert not calls
    monkeypatch.setattr("hpcfl.data.sources.digits.Path.is_file", lambda path: False)
    theirs = Digits().load(0)
    assert calls
    for mine, other in zip((ours.train, ours.test), (theirs.train, theirs.test), strict=True):
        assert torch.equal(mine.inputs, other.inputs)
        assert torch.equal(mine.labels, other.labels)


def test_scikit_learn_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(JobError, match=r"^data\.kind: digits needs .*hpcfl\[demo\]'$"):
        Digits().load(0)
