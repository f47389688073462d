"""What a start records of the packages that it uses."""

import sys

from hpcfl.start import environment


def test_packages_are_read_again_where_one_was_installed(tmp_path, monkeypatch):
    """Every start of a process asks, and to read them takes a tenth of a second."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "late", None)
    before = environment.packages()
    assert before["numpy"] == sys.modules["numpy"].__version__
    assert "late-package" not in before
    read = []
    distributions = environment.distributions
    monkeypatch.setattr(environment, "distributions", lambda: read.append(1) or distributions())
    assert environment.packages() == before
    assert not read
    info = tmp_path / "late_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late-package\nVersion: 1.0\n")
    (info / "RECORD").write_text("late/__init__.py,,\n")
    assert environment.packages() == {**before, "late-package": "1.0"}
    assert read
