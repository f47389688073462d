import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from hpcfl import plots
from hpcfl.errors import JobError
from hpcfl.plots import plot, plot_partition
from hpcfl.report import RunRecord


def run(name, *, accuracy=True, evaluated=range(0, 101, 10)):
    log = []
    for t in evaluated:
        log.append({"round": t, "test_loss": 2.0 / (1 + t)})
        if accuracy:
            log[-1]["test_accuracy"] = t / 100
    return RunRecord(Path(name), "fedavg", 100, 1, tuple(log))


def colours(path):
    pixels = (imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    return {tuple(pixel) for pixel in np.unique(pixels, axis=0)}


BLUE, VERMILION = (0, 114, 178), (213, 94, 0)


def test_every_run_has_its_curve(tmp_path):
    plot([run("one")], tmp_path / "one.png")
    plot([run("one"), run("two")], tmp_path / "two.png")
    assert BLUE in colours(tmp_path / "one.png")
    assert VERMILION not in colours(tmp_path / "one.png")
    assert {BLUE, VERMILION} <= colours(tmp_path / "two.png")


def test_a_regression_is_drawn_by_its_loss(tmp_path):
    plot([run("one", accuracy=False)], tmp_path / "loss.png")
    assert BLUE in colours(tmp_path / "loss.png")


def test_accuracy_and_regression_do_not_mix(tmp_path):
    with pytest.raises(JobError, match="two: has no test accuracy"):
        plot([run("one"), run("two", accuracy=False)], tmp_path / "x.png")


def test_nothing_evaluated_yet(tmp_path):
    with pytest.raises(JobError, match="one: no evaluated round"):
        plot([run("one", evaluated=())], tmp_path / "x.png")


@pytest.mark.parametrize(("last", "scale"), [(9.0, "linear"), (11.0, "log")])
def test_any_number_of_the_log_can_be_drawn(tmp_path, monkeypatch, last, scale):
    """On a log scale from a factor of ten on; rounds that lack it are left out."""
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: drawn.append(figure.axes[0]))
    log = ({"round": 1, "drift": 1.0}, {"round": 2, "clients": 0}, {"round": 3, "drift": last})
    plot([RunRecord(tmp_path, "fedavg", 3, 1, log)], tmp_path / "drift.png", "drift")
    (axes,) = drawn
    assert axes.lines[0].get_xydata().tolist() == [[1.0, 1.0], [3.0, last]]
    assert (axes.get_ylabel(), axes.get_yscale()) == ("drift", scale)


def test_a_number_that_no_round_has(tmp_path):
    with pytest.raises(JobError, match=r"one: no round in log\.jsonl has 'drfit'.*test_accuracy, "):
        plot([run("one")], tmp_path / "x.png", "drfit")


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=r"cannot be written: (Not a directory|File exists)"):
        plot([run("one")], tmp_path / "file" / "x.png")


def test_missing_folders_are_made(tmp_path):
    plot([run("one")], tmp_path / "new" / "folder" / "x.png")
    assert BLUE in colours(tmp_path / "new" / "folder" / "x.png")


@pytest.mark.parametrize("clients", [3, 2000])
def test_partitions(tmp_path, clients):
    counts = np.zeros((clients, 10), np.int64)
    counts[:, 3] = 50
    plot_partition(counts, tmp_path / "classes.png")
    plot_partition(counts.sum(axis=1), tmp_path / "sizes.png")
    full_share = (8, 48, 107)  # the darkest of "Blues": every client holds class 3 only
    assert full_share in colours(tmp_path / "classes.png")
    assert imread(tmp_path / "sizes.png").shape[1] == 7 * 150


def test_matplotlib_is_loaded_on_use_only():
    code = "import sys, hpcfl.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
