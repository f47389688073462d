"""Convolutions whose gradient in bfloat16 would hold what was in memory are refused."""

import numpy as np
import pytest


@pytest.fixture
def images(arrays):
    """The setting of data that has images [1, 4, width]."""

    def setting(width):
        random = np.random.default_rng(0)
        x = random.standard_normal((40, 1, 4, width)).astype(np.float32)
        return f"data.path={arrays(x=x, x_test=x[:12])}"

    return setting


@pytest.fixture
def net(tmp_path, monkeypatch):
    (tmp_path / "narrow.py").write_text("""\
from torch import nn


def net(kernel=3):
    layer = nn.Conv2d(1, 4, kernel, stride=2, padding=kernel // 2)
    return nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


def points():
    return net(1)
""")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("net")
def test_a_stride_larger_than_the_images_is_refused(job, images, refused, hpcfl):
    words = ["check", "--data", job, "model={name: module, of: narrow.net}", "precision=bf16"]
    line = refused(*words, images(1))
    assert "precision: found bf16, but a convolution has a stride of 2 and images 1 wide" in line
    assert line.endswith("say precision=float32")
    assert hpcfl(*words, images(2)).code == 0
    assert hpcfl(*words, images(1), "precision=float32").code == 0
    assert hpcfl(*words, images(1), "model.of=narrow.points").code == 0
