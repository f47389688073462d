import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from hpcfl import plots
from hpcfl.errors import JobError
from hpcfl.plots import Plot, plot_partition
from hpcfl.records import RunRecord


def run(name, *, accuracy=True, evaluated=range(0, 101, 10)):
    log = []
    for t in evaluated:
        log.append({"round": t, "test_loss": 2.0 / (1 + t)})
        if accuracy:
            log[-1]["test_accuracy"] = t / 100
    return RunRecord(Path(name), "fedavg", 100, 1, tuple(log))


def plot(runs, path, y=None):
    Plot(runs, path, y).draw()


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


def test_an_objective_is_drawn_where_nothing_is_tested(tmp_path):
    log = tuple({"round": t, "objective": 2.0 / (1 + t)} for t in range(0, 101, 10))
    trained = RunRecord(Path("o"), "fedavg", 100, 1, log)
    plot([trained], tmp_path / "o.png")
    assert BLUE in colours(tmp_path / "o.png")
    with pytest.raises(JobError, match="only a test loss, others only an objective"):
        plot([trained, run("one", accuracy=False)], tmp_path / "x.png")


@pytest.mark.parametrize(
    ("name", "begin"), [("a.pdf", b"%PDF"), ("a.PNG", b"\x89PNG"), ("a.svg", b"<?xml")]
)
def test_the_ending_says_the_kind_of_picture(tmp_path, name, begin):
    plot([run("one")], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)


@pytest.mark.parametrize("name", ["a.gif", "a"])
def test_other_kinds_of_pictures_are_refused(tmp_path, name):
    with pytest.raises(JobError, match=r"a plot is written as \.png, \.pdf, \.svg"):
        Plot([run("one")], tmp_path / name)
    with pytest.raises(JobError, match=r"a plot is written as \.png, \.pdf, \.svg"):
        plot_partition(np.ones(3, np.int64), tmp_path / name)


def test_runs_without_the_number_are_left_out(tmp_path):
    new, other = run("new", evaluated=()), run("other", accuracy=False)
    assert Plot([run("one"), new], tmp_path / "x.png").without == [new]
    assert Plot([other, run("one")], tmp_path / "x.png", "test_accuracy").without == [other]
    with pytest.raises(JobError, match="; did you mean test_accuracy"):
        Plot([run("one"), new], tmp_path / "x.png", "test_acuracy")


def seeded(name, seed, lr, last):
    log = tuple({"round": t, "drift": 1.0 + t * last} for t in range(3))
    return RunRecord(Path(name), "fedavg", 2, 1, log, {"seed": seed, "local.lr": lr})


def test_seeds_share_a_colour_and_a_line_of_the_legend(tmp_path, monkeypatch):
    """Two thin lines to 3 and 5, and a thick one of their mean to 4; another job by itself."""
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: drawn.append(figure.axes[0]))
    runs = [seeded("a0", 0, 0.1, 1.0), seeded("b", 0, 0.5, 1.5), seeded("a1", 1, 0.1, 2.0)]
    plot([*runs, seeded("again", 0, 0.1, 0.0)], tmp_path / "x.png", "drift")
    first, second, mean, apart, again = drawn[0].lines
    assert [line.get_ydata()[-1] for line in drawn[0].lines] == [3.0, 5.0, 4.0, 4.0, 1.0]
    assert first.get_color() == second.get_color() == mean.get_color() != apart.get_color()
    assert again.get_color() not in (mean.get_color(), apart.get_color())
    assert first.get_linewidth() < apart.get_linewidth() < mean.get_linewidth()
    told = [text.get_text() for text in drawn[0].get_legend().get_texts()]
    assert told == ["fedavg, local.lr 0.1 (2 seeds)", "b", "again"]
