import sys
from importlib.util import find_spec

import pytest

from hpcfl.data import cifar, vision
from hpcfl.data.cifar10 import Cifar10
from hpcfl.errors import DataError, JobError

installed = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is absent")


@installed
def test_torchvision_is_imported_beside_any_torch():
    assert hasattr(vision.torchvision().datasets, "CIFAR10")
    assert vision.torchvision() is vision.torchvision()


def test_reading_cifar_needs_no_torchvision(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataError, match="found neither"):
        Cifar10(root=str(tmp_path)).load(0)


def test_torchvision_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(vision, "find_spec", lambda name: None)
    with pytest.raises(JobError, match="torchvision is not installed"):
        Cifar10(root=str(tmp_path), download=True).fetch()


def test_another_failure_of_its_import_is_told(monkeypatch):
    def fail(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(vision, "find_spec", lambda name: True)
    monkeypatch.setattr(vision, "import_module", fail)
    monkeypatch.setattr(vision, "_declare", lambda operator: None)
    monkeypatch.setattr(vision, "_forget", lambda: None)
    with pytest.raises(JobError, match="torchvision does not import beside torch"):
        vision.torchvision()  # ends although declaring the operator did not help


def test_a_failed_download_names_the_folder(tmp_path, monkeypatch):
    class Package:
        class datasets:
            @staticmethod
            def CIFAR10(root, download):
                raise RuntimeError("no route to host")

    monkeypatch.setattr(cifar, "torchvision", lambda: Package)
    with pytest.raises(DataError, match="CIFAR10 could not be downloaded: no route to host"):
        Cifar10(root=str(tmp_path), download=True).fetch()


def test_only_fetch_downloads(tmp_path, monkeypatch):
    """Every rank loads; one alone fetches."""
    asked = []
    monkeypatch.setattr(cifar, "download", lambda root, dataset: asked.append((root, dataset)))
    Cifar10(root=str(tmp_path)).fetch()
    with pytest.raises(DataError, match="found neither"):
        Cifar10(root=str(tmp_path), download=True).load(0)
    assert not asked
    Cifar10(root=str(tmp_path), download=True).fetch()
    assert asked == [(tmp_path, "CIFAR10")]
