import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from hpcfl.errors import JobError, printable
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report.plots import Plot, curves, plot_partition
from hpcfl.tools.report.plots.curves import Curve, _choose_looks
from hpcfl.tools.report.plots.figure import COLOURS, save


def run(name, *, accuracy=True, evaluated=range(0, 101, 10)):
    log = []
    for t in evaluated:
        log.append({"round": t, "test_loss": 2.0 / (1 + t)})
        if accuracy:
            log[-1]["test_accuracy"] = t / 100
    return RunRecord(Path(name), "fedavg", 100, 1, tuple(log))


def plot(runs, path, y=None):
    Plot(runs, [path], y).draw()


def colours(path):
    pixels = (imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    return {tuple(pixel) for pixel in np.unique(pixels, axis=0)}


BLUE, VERMILION = (0, 114, 178), (213, 94, 0)


@pytest.mark.slow
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
def test_any_number_of_the_log_can_be_drawn(tmp_path, drawn, last, scale):
    """On a log scale from a factor of ten on; rounds that lack it are left out."""
    log = ({"round": 1, "drift": 1.0}, {"round": 2, "clients": 0}, {"round": 3, "drift": last})
    plot([RunRecord(tmp_path, "fedavg", 3, 1, log)], tmp_path / "drift.png", "drift")
    (axes,) = drawn[0].axes
    assert axes.lines[0].get_xydata().tolist() == [[1.0, 1.0], [3.0, last]]
    assert (axes.get_ylabel(), axes.get_yscale()) == ("drift", scale)


def test_a_number_that_no_round_has(tmp_path):
    with pytest.raises(JobError, match=r"one: no round in log\.jsonl has 'drfit'.*test_accuracy, "):
        plot([run("one")], tmp_path / "x.png", "drfit")


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=r"cannot be written: Not a directory"):
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
    assert BLUE in colours(tmp_path / "sizes.png")


@pytest.mark.slow
def test_matplotlib_is_loaded_on_use_only():
    code = "import sys, hpcfl.tools.report.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_objective_is_drawn_where_nothing_is_tested(tmp_path):
    log = tuple({"round": t, "train_objective": 2.0 / (1 + t)} for t in range(0, 101, 10))
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
    with pytest.raises(JobError, match=r"expected one in \.png or \.pdf or \.svg"):
        Plot([run("one")], [tmp_path / name])


def test_runs_without_the_number_are_left_out(tmp_path):
    new, other = run("new", evaluated=()), run("other", accuracy=False)
    assert Plot([run("one"), new], [tmp_path / "x.png"]).without == [new]
    assert Plot([other, run("one")], [tmp_path / "x.png"], "test_accuracy").without == [other]
    with pytest.raises(JobError, match="; did you mean test_accuracy"):
        Plot([run("one"), new], [tmp_path / "x.png"], "test_acuracy")


def seeded(name, seed, lr, last, rounds=2, **more):
    log = tuple({"round": t, "drift": 1.0 + t * last} for t in range(rounds + 1))
    algorithm = more.setdefault("algorithm.name", "fedavg")
    settings = {"seed": seed, "local.lr": lr, **more}
    return RunRecord(Path(name), algorithm, 2, 1, log, settings)


@pytest.fixture
def drawn(monkeypatch):
    """What would have been saved: a list of figures."""
    figures = []
    monkeypatch.setattr(curves, "save", lambda figure, paths: figures.append(figure))
    return figures


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_seeds_are_a_mean_in_a_band(tmp_path, drawn):
    """Of 3 and 5: the mean 4, sample standard deviation sqrt(2); other jobs by themselves."""
    runs = [seeded("a0", 0, 0.1, 1.0), seeded("b", 0, 0.5, 1.4), seeded("a1", 1, 0.1, 2.0)]
    plot([*runs, seeded("again", 0, 0.1, 0.0)], tmp_path / "x.png", "drift")
    (axes,) = drawn[0].axes
    assert [line.get_ydata()[-1] for line in axes.lines] == [4.0, 3.8, 1.0]
    assert len({line.get_color() for line in axes.lines}) == 3
    (band,) = axes.collections
    x, y = band.get_paths()[0].vertices.T
    assert sorted(set(y[x == 2].round(9))) == pytest.approx([4 - 2**0.5, 4 + 2**0.5])
    assert legend(axes) == [
        "fedavg, local.lr 0.1 (2 seeds)", "fedavg, local.lr 0.5", "fedavg, local.lr 0.1, again",
    ]  # fmt: skip


def test_a_seed_that_lags_behind_shortens_no_mean(tmp_path, drawn):
    runs = [seeded(f"s{k}", k, 0.1, 1.0 + k) for k in range(2)]
    runs.append(seeded("s2", 2, 0.1, 9.0, rounds=1))
    plot(runs, tmp_path / "x.png", "drift")
    (axes,) = drawn[0].axes
    (mean,) = axes.lines
    assert mean.get_xydata().tolist() == [[0, 1], [1, 2.5], [2, 4]]
    assert legend(axes) == ["fedavg (2 of 3 seeds)"]


def test_an_axis_that_nothing_is_drawn_against(tmp_path):
    with pytest.raises(JobError, match="expected rounds, bytes, time or simulated"):
        curves.Plot([seeded("a", 0, 0.1, 1.0)], [tmp_path / "x.png"], "drift", "epochs")


def test_how_far_an_unfinished_run_is(tmp_path, drawn):
    plot([seeded("u", 0, 0.1, 1.0, rounds=1)], tmp_path / "x.png", "drift")
    assert legend(drawn[0].axes[0]) == ["fedavg (1 of 2 rounds)"]


NAMES = ["lr$\\foo$", "$", "a_1$^", "b\udcff", "c\x07"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_written_as_they_are(tmp_path, drawn, name):
    """Dollar signs of the user's are no mathematics; what no text may hold is escaped."""
    settings = {"algorithm.name": "fedavg", "data.kind": name}
    runs = [seeded(f"{name}{k}", k, 0.1, 1.0, **settings) for k in range(2)]
    runs = [replace(run, settings={**run.settings, "seed": 0}) for run in runs]
    runs = [replace(run, log=tuple({**e, name: e["drift"]} for e in run.log)) for run in runs]
    plot(runs, tmp_path / "x.png", name)
    save(drawn[0], [tmp_path / f"x.{form}" for form in ("png", "pdf", "svg")])
    (axes,) = drawn[0].axes
    shown = printable(name)
    assert sorted(legend(axes)) == [f"fedavg, {shown}{k}" for k in range(2)]
    assert axes.get_title() == shown
    assert axes.get_ylabel() == shown.replace("_", " ")
    texts = [axes.title, axes.yaxis.label, *axes.get_legend().get_texts()]
    assert not any(text.get_parse_math() for text in texts)


def test_ticks_of_few_rounds_are_whole(tmp_path, drawn):
    log = tuple({"round": t, "drift": 1.0 + t} for t in range(1, 4))
    plot([RunRecord(Path("a"), "fedavg", 3, 1, log)], tmp_path / "x.png", "drift")
    assert all(float(tick).is_integer() for tick in drawn[0].axes[0].get_xticks())


SPENT = tuple(
    {"round": t, "drift": 1.0 + t, "down_bytes": 2_000_000, "up_bytes": 1_000_000, "wall_s": 60.0}
    for t in range(1, 4)
)


@pytest.mark.parametrize(
    ("x", "at", "label"),
    [("rounds", [1, 2, 3], "round"), ("bytes", [3, 6, 9], "sent up and down, MB"),
     ("time", [1, 2, 3], "wall time of the rounds, min")],
)  # fmt: skip
def test_against_rounds_bytes_and_time(tmp_path, drawn, x, at, label):
    run = RunRecord(Path("r"), "fedavg", 3, 1, SPENT)
    Plot([run], [tmp_path / "x.png"], "drift", x).draw()
    (axes,) = drawn[0].axes
    assert axes.lines[0].get_xdata().tolist() == at
    assert axes.get_xlabel() == label


def test_a_run_that_sends_nothing_has_no_place_along_bytes(tmp_path):
    quiet = run("quiet")
    with pytest.raises(JobError, match=r"quiet: log\.jsonl counts no bytes"):
        Plot([quiet], [tmp_path / "x.png"], x="bytes")
    sends = RunRecord(Path("r"), "fedavg", 3, 1, tuple(e | {"test_accuracy": 0.5} for e in SPENT))
    assert Plot([quiet, sends], [tmp_path / "x.png"], x="bytes").without == [quiet]


def test_a_title_says_what_all_runs_share_and_how_they_were_chosen(tmp_path, drawn):
    set_up = {"data.kind": "digits", "model.name": "linear", "data.clients": 20,
              "data.partition.kind": "dirichlet"}  # fmt: skip
    runs = [
        seeded(f"a{alpha}", 0, 0.1, 1.0, **set_up, **{"data.partition.alpha": alpha})
        for alpha in (0.0, 0.3)
    ]
    plot(runs[:1], tmp_path / "x.png", "drift")
    plot(runs, tmp_path / "x.png", "drift")
    note = "settings chosen on the validation data"
    Plot(runs[:1], [tmp_path / "x.png"], "drift", note=note).draw()
    assert [figure.axes[0].get_title() for figure in drawn] == [
        "digits, linear, dirichlet 0, 20 clients",
        "digits, linear, 20 clients",
        f"digits, linear, dirichlet 0, 20 clients\n{note}",
    ]


def test_set_ups_are_told_apart_in_the_legend(tmp_path, drawn):
    runs = [
        seeded(f"{data}-{name}", 0, 0.1, at, **{"algorithm.name": name, "data.kind": data})
        for at, data in enumerate(("digits", "cifar10")) for name in ("fedavg", "scaffold")
    ]  # fmt: skip
    plot(runs, tmp_path / "x.png", "drift")
    (axes,) = drawn[0].axes
    assert legend(axes) == [
        "fedavg, data.kind cifar10", "scaffold, data.kind cifar10",
        "fedavg, data.kind digits", "scaffold, data.kind digits",
    ]  # fmt: skip
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 4


def test_a_long_legend_is_beside_the_axes_and_in_the_picture(tmp_path, drawn):
    runs = [seeded(f"r{k}", 0, k / 10, k) for k in range(1, 9)]
    plot(runs, tmp_path / "x.png", "drift")
    save(drawn[0], [tmp_path / "x.png"])
    (axes,) = drawn[0].axes
    box = axes.get_legend().get_window_extent()
    assert box.x0 >= axes.get_window_extent().x1
    assert imread(tmp_path / "x.png").shape[1] >= box.x1 - axes.get_window_extent().x0


def test_a_diverged_seed_has_no_band_there(tmp_path, drawn):
    logs = [[1.0, 2.0, float("inf")], [1.0, 4.0, 5.0]]
    runs = [
        RunRecord(Path(f"s{k}"), "fedavg", 2, 1,
                  tuple({"round": t, "drift": v} for t, v in enumerate(log)), {"seed": k})
        for k, log in enumerate(logs)
    ]  # fmt: skip
    plot(runs, tmp_path / "x.png", "drift")
    (line,) = drawn[0].axes[0].lines
    assert line.get_ydata().tolist() == [1.0, 3.0, float("inf")]


def test_a_picture_in_several_files(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "a.pdf"]
    Plot([run("one")], paths).draw()
    assert [path.read_bytes()[:4] for path in paths] == [b"\x89PNG", b"%PDF"]


def test_of_many_curves_the_best_twelve_are_drawn(tmp_path):
    """A line says so."""
    runs = [
        RunRecord(
            *(Path(f"{name}{k}"), name, 4, 0),
            log=({"round": 0, "test_accuracy": 0.0}, {"round": 4, "test_accuracy": (k + 1) / 9}),
            settings={"algorithm.name": name, "local.lr": f"{k}"},
        )
        for name in ("fedavg", "scaffold")
        for k in range(7)
    ]
    made = Plot(runs, [tmp_path / "x.pdf"])
    drawn = made._drawn_curves()
    assert made.notes == [
        "plot: 12 of the 14 curves are drawn, those that end best; to draw others, report their "
        "directories alone"
    ]
    assert [curve.y[-1] for curve in drawn] == sorted(2 * [k / 9 for k in range(2, 8)])[::-1]
    assert len(set(_choose_looks(drawn).values())) == 12


def curve(algorithm, name):
    return Curve(algorithm, name, name, [0, 1], [0, 1], [])


def test_a_method_has_one_colour_in_every_plot():
    """FedAvg's is the first, also beside a class of the user's; rates have dashes."""
    names = ["clip.Clipped", "fedavg", "scaffold", "fedhbm"]
    together = _choose_looks([curve(name, name) for name in names])
    assert together["fedavg"] == (COLOURS[0], "-")
    assert len({colour for colour, _ in together.values()}) == 4
    for name in ("fedavg", "scaffold", "fedhbm"):
        assert _choose_looks([curve(name, name)])[name] == together[name]
        rates = [curve(of, f"{of}, local.lr {k}") for of in (name, "fedprox") for k in (1, 2)]
        looks = _choose_looks(rates)
        colours = {looks[f"{name}, local.lr {k}"] for k in (1, 2)}
        assert colours == {(together[name][0], "-"), (together[name][0], "--")}


def test_variants_of_one_method_have_colours():
    looks = _choose_looks([curve("fedavg", f"fedavg, local.lr {k}") for k in range(9)])
    assert len(set(looks.values())) == 9
    assert len({colour for colour, _ in looks.values()}) == len(COLOURS)


def test_a_title_names_no_class_of_hpcfl(tmp_path, drawn):
    """Of a run with objects of a script: its data and model are the user's."""
    kinds = {"data.kind": "hpcfl.data.objects.KeptArrays", "model.name": "module"}
    plot([seeded("a", 0, 0.1, 1.0, **kinds)], tmp_path / "x.png", "drift")
    assert drawn[0].axes[0].get_title() == "own data, own model"
