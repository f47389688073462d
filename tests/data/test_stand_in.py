"""A stand-in has the form of the data that it stands for, and the published sizes."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from hpcfl.data import SOURCES
from hpcfl.data.base import Dataset
from hpcfl.data.published import PublishedSizes
from hpcfl.data.sources.shakespeare import Shakespeare
from hpcfl.errors import JobError
from tests.jobs.miniatures import MAKERS, SMALLER, SUBSETS
from tests.real_data import real

UNKNOWN = ("arrays", "huggingface", "image_folder", "leaf", "quadratics")


def miniature(kind, root):
    """The section of data of a few examples in the published layout."""
    MAKERS[kind](root)
    cls = SOURCES[kind]
    keys = {field.name for field in fields(cls)}
    small = {
        key: value
        for key, value in SMALLER.items()
        if key in keys and key in ("vocabulary", "size", "margin", "test_examples")
    }
    if kind == "tiny_imagenet":
        small = {key: value for key, value in small.items() if key == "vocabulary"}
    if kind in SUBSETS:
        small["subset"] = True
    return cls(**small, **({"root": str(root)} if "root" in keys else {}))


@pytest.mark.parametrize("kind", sorted({*MAKERS} - {"quadratics"}))
def test_the_form_is_that_of_the_data(kind, tmp_path):
    data = miniature(kind, tmp_path)
    found: Dataset = data.load(0)
    sizes = PublishedSizes(
        train=len(found.train.labels),
        test=len(found.test.labels),
        clients=None if found.natural is None else len(found.natural),
        classes=found.classes,
        spread=0.0,
    )
    made = data.stand_in(sizes, 0)
    assert (made.classes, made.loss, made.mapped) == (found.classes, found.loss, found.mapped)
    assert (made.natural is None) == (found.natural is None)
    assert (made.natural_tests is None) == (found.natural_tests is None)
    for own, real_one in ((made.train, found.train), (made.test, found.test)):
        shape = tuple(real_one.inputs.shape)
        if kind == "tiny_imagenet":  # whose miniature is of smaller images
            shape = (shape[0], 64, 64, 3)
        assert (tuple(own.inputs.shape), own.inputs.dtype) == (shape, real_one.inputs.dtype)
        assert (own.labels.shape, own.labels.dtype) == (
            real_one.labels.shape,
            real_one.labels.dtype,
        )
    inputs = [d.transform(d.sample(2), torch.float32, None) for d in (made, found)]
    assert inputs[0].dtype == inputs[1].dtype
    if kind != "tiny_imagenet":
        assert inputs[0].shape == inputs[1].shape


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_sources_state_their_sizes_or_none(kind):
    own = {"path": "x"} if kind in ("arrays", "huggingface") else {}
    data = SOURCES[kind](**own)
    assert (data.published is None) == (kind in UNKNOWN)
    if data.published is None:
        return
    made = data.stand_in(data.published, 0)
    assert len(made.train.labels) == data.published.train
    if data.published.clients is not None:
        assert len(made.natural) == data.published.clients
        assert made.natural.sizes.sum() == data.published.train
        assert made.natural.sizes.min() > 0


def test_the_numbers_of_digits():
    data = SOURCES["digits"]()
    found, stated = data.load(0), data.published
    assert (len(found.train.labels), len(found.test.labels)) == (stated.train, stated.test)


def test_the_numbers_of_shakespeare():
    root = real("shakespeare_train.h5").parent
    found, stated = Shakespeare(root=str(root)).load(0), Shakespeare().published
    sizes = np.array([len(rows) for rows in found.natural])
    assert (len(sizes), sizes.sum()) == (stated.clients, stated.train)
    assert len(found.test.labels) == stated.test
    made = Shakespeare(min_examples=2000).stand_in(stated, 0)
    assert len(made.natural) == pytest.approx((sizes >= 2000).sum(), rel=0.1)


def test_tests_are_divided_among_clients():
    """In the proportions of the training examples."""
    made = Shakespeare(max_examples=10).stand_in(
        PublishedSizes(clients=4, train=400, test=40, classes=80, spread=0.0), 0
    )
    assert made.natural.sizes.tolist() == [10] * 4
    assert [rows.tolist() for rows in made.natural][1] == list(range(100, 110))
    assert [rows.tolist() for rows in made.natural_tests] == [
        list(range(10 * k, 10 * k + 10)) for k in range(4)
    ]


def test_too_few_examples_for_the_least():
    sizes = PublishedSizes(clients=4, train=400, test=40, classes=80, spread=0.0)
    with pytest.raises(JobError, match="none of the 4 clients has 101 examples"):
        Shakespeare(min_examples=101).stand_in(sizes, 0)


def test_a_class_without_stand_ins_is_refused():
    with pytest.raises(JobError, match="Quadratics cannot be planned without its files"):
        SOURCES["quadratics"]().stand_in(PublishedSizes(train=1), 0)
