"""The command that draws local trajectories."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from hpcfl.report.plots import trajectories

ROOT = Path(__file__).parents[2]
FIGURE1 = ROOT / "jobs/papers/slides_figure1.yaml"
PLANE = ("data.dim=2", "data.heterogeneity=1.0", "seed=8", "rounds=2")

pytestmark = pytest.mark.usefixtures("own_process")


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    kept, save = [], trajectories.save
    monkeypatch.setattr(
        trajectories, "save", lambda figure, paths: (kept.append(figure), save(figure, paths))
    )
    return kept


def test_a_panel_a_run_of_a_sweep(hpcfl, tmp_path, figures):
    """Two clients' trajectories of four points in each of two rounds, and the server's of three."""
    file = tmp_path / "drift.png"
    done = hpcfl("drift", FIGURE1, *PLANE, "--only", "fedavg,mimemom", "--plot", file)
    assert (done.code, done.err) == (0, [f"plot: {file}"])
    assert [line.split()[1] for line in done.out[4:6]] == ["fedavg", "mimemom"]
    assert file.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    assert [axes.get_title() for axes in figure.axes] == ["fedavg", "mimemom"]
    for axes in figure.axes:
        sizes = sorted(len(line.get_xdata()) for line in axes.lines)
        assert sizes == [1, 1, 1, 1, 3, 4, 4, 4, 4]
        low, high = axes.get_xlim()
        assert all(low < x < high for line in axes.lines for x in line.get_xdata())
    limits = {(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}
    assert len(limits) == 1
    (star,) = (line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert np.allclose(star.get_xydata(), 0)


def test_a_job(hpcfl, tmp_path, figures, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ROOT / "jobs/quadratics/scaffold.yaml"
    assert hpcfl("drift", job, *PLANE, "data.clients=9", "cohort.size=9").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drift.png"]
    (figure,) = figures
    (text,) = (t.get_text() for t in figure.legends[0].get_texts() if "client" in t.get_text()[:7])
    assert text == "clients: local steps, and their minima"


def test_what_is_refused(refused, tmp_path):
    job = ROOT / "jobs/quadratics/fedavg.yaml"
    plot = ("--plot", tmp_path / "drift.png")
    assert "expected quadratics in the plane" in refused("drift", job, *plot)
    assert "is a job; leave it out" in refused("drift", job, *PLANE, "--only", "fedavg", *plot)
    many = ROOT / "jobs/quadratics/methods.yaml"
    assert "runs, expected 12 at most" in refused("drift", many, *PLANE, *plot)
    assert ".png, .pdf, .svg" in refused("drift", job, *PLANE, "--plot", tmp_path / "drift.txt")
    assert not list(tmp_path.iterdir())


def test_the_size_of_the_picture(hpcfl, refused, tmp_path, figures):
    """One option, as of reports and of `hpcfl data show`."""
    words = ["drift", FIGURE1, *PLANE, "--only", "fedavg", "--plot", tmp_path / "drift.svg"]
    assert hpcfl(*words, "--size", "5x4").code == 0
    assert figures[0].get_size_inches().tolist() == [5, 4]
    assert "--size: found '5', expected WIDTHxHEIGHT" in refused(*words, "--size", "5")
    show = ["data", "show", "quickstart", "--plot", tmp_path / "p.png"]
    assert hpcfl(*show, "--size", "3x4").code == 0
    assert imread(tmp_path / "p.png").shape[:2] == (4 * 150, 3 * 150)
    assert "--size: found '0x1'" in refused(*show, "--size", "0x1")
