import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from hpcfl.errors import JobError, printable
from hpcfl.report.plots import Plot, PlotStyle, curves, plot_partition
from hpcfl.report.plots.drawing import Curve, choose_looks
from hpcfl.report.plots.figure import COLOURS, FigureSize, save
from hpcfl.runs.record import RunRecord


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
    assert imread(tmp_path / "sizes.png").shape[1] == 7 * 150


def test_a_partition_in_a_chosen_size(tmp_path):
    path = tmp_path / "classes.png"
    plot_partition(np.ones((5, 3), np.int64), path, FigureSize(4, 3))
    assert imread(path).shape[:2] == (3 * 150, 4 * 150)
    plot_partition(np.ones(5, np.int64), path, FigureSize(3, 2))
    assert imread(path).shape[:2] == (2 * 150, 3 * 150)
    with pytest.raises(JobError, match="--size: 1x1 inches leave no room"):
        plot_partition(np.ones((5, 3), np.int64), path, FigureSize(1, 1))
    assert imread(path).shape[:2] == (2 * 150, 3 * 150)


@pytest.mark.slow
def test_matplotlib_is_loaded_on_use_only():
    code = "import sys, hpcfl.report.plots; sys.exit('matplotlib' in sys.modules)"
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
    with pytest.raises(JobError, match=r"expected one in \.png or \.pdf or \.svg"):
        plot_partition(np.ones(3, np.int64), tmp_path / name)


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
    behind, mean = axes.lines
    assert behind.get_xydata().tolist() == [[0, 1], [1, 10]]
    assert mean.get_xydata().tolist() == [[0, 1], [1, 2.5], [2, 4]]
    assert behind.get_linewidth() < mean.get_linewidth()
    assert behind.get_color() == mean.get_color()
    assert legend(axes) == ["fedavg (2 of 3 seeds)"]


def test_a_seed_that_lags_behind_is_inside_the_axes(tmp_path, drawn):
    """It may have taken more time for fewer rounds."""
    fast, slow = seeded("fast", 0, 0.1, 1.0), seeded("slow", 1, 0.1, 2.0, rounds=1)
    slow = replace(slow, log=tuple({**entry, "wall_s": 1000.0} for entry in slow.log))
    fast = replace(fast, log=tuple({**entry, "wall_s": 1.0} for entry in fast.log))
    Plot([fast, slow], [tmp_path / "x.png"], "drift", x="time").draw()
    (axes,) = drawn[0].axes
    assert axes.get_xlim()[1] == max(x for line in axes.lines for x in line.get_xdata())


def test_an_axis_that_nothing_is_drawn_against(tmp_path):
    with pytest.raises(JobError, match="expected rounds, bytes, time or simulated"):
        curves.Plot([seeded("a", 0, 0.1, 1.0)], [tmp_path / "x.png"], "drift", "epochs")


def test_how_far_an_unfinished_run_is(tmp_path, drawn):
    plot([seeded("u", 0, 0.1, 1.0, rounds=1)], tmp_path / "x.png", "drift")
    assert legend(drawn[0].axes[0]) == ["fedavg (1 of 2 rounds)"]


def test_labels_and_size_of_a_paper(tmp_path, drawn):
    """The colours stay those of the methods."""
    runs = [seeded("a", 0, 0.1, 1.0), seeded("b", 0, 0.5, 1.4)]
    plot(runs, tmp_path / "x.png", "drift")
    style = PlotStyle("Rounds", "Client drift", size=FigureSize(3.3, 2.5))
    Plot(runs, [tmp_path / "x.png"], "drift", style=style).draw()
    plain, styled = (figure.axes[0] for figure in drawn)
    assert (styled.get_xlabel(), styled.get_ylabel()) == ("Rounds", "Client drift")
    assert drawn[1].get_size_inches().tolist() == [3.3, 2.5]
    looks = [
        [(line.get_color(), line.get_linestyle()) for line in a.lines] for a in (plain, styled)
    ]
    assert looks[0] == looks[1]


def test_mathematics_that_matplotlib_cannot_read(tmp_path):
    with pytest.raises(
        JobError, match=r"--ylabel: found '\$\\\\foo\$', whose mathematics"
    ) as error:
        Plot([run("one")], [tmp_path / "x.png"], style=PlotStyle(ylabel="$\\foo$"))
    assert "\n" not in str(error.value)
    Plot([run("one")], [tmp_path / "x.png"], style=PlotStyle(xlabel="cost, $")).draw()


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


@pytest.mark.parametrize("size", ["7x4.5", "3.3x2.5", " 40x1 "])
def test_a_size(size):
    assert FigureSize.parse(size) == tuple(map(float, size.split("x")))


@pytest.mark.parametrize("size", ["", "7", "7x", "0x4", "-7x4", "7x4x2", "nanx4", "1e1x4", "7x400"])
def test_a_size_that_is_none(size):
    with pytest.raises(JobError, match=f"--size: found '{size}', expected WIDTHxHEIGHT in inches"):
        FigureSize.parse(size)


def placed(figure):
    """The boxes of the axes and of their legend, once laid out."""
    figure.draw_without_rendering()
    (axes,) = figure.axes
    return axes.get_window_extent(), axes.get_legend().get_window_extent()


def test_the_legend_of_few_curves_is_inside_and_of_many_beside(tmp_path, drawn):
    plot([run("one"), run("two")], tmp_path / "x.png")
    plot([seeded(f"r{k}", 0, k / 10, k) for k in range(1, 9)], tmp_path / "x.png", "drift")
    few, many = map(placed, drawn)
    axes, box = few
    assert axes.x0 <= box.x0 and box.x1 <= axes.x1
    assert axes.y0 <= box.y0 and box.y1 <= axes.y1
    axes, box = many
    assert box.x0 >= axes.x1
    width, _ = drawn[1].get_size_inches() * drawn[1].dpi
    assert box.x1 <= width
    assert axes.width > width / 2


def test_a_size_without_room_for_a_label(tmp_path):
    style = PlotStyle(ylabel="a label of a whole sentence that is too long", size=FigureSize(3, 2))
    made = Plot([seeded("a", 0, 0.1, 1.0)], [tmp_path / "x.png"], "drift", style=style)
    with pytest.raises(JobError, match="--size: 3x2 inches leave no room beside the labels"):
        made.draw()
    assert not (tmp_path / "x.png").exists()


def test_ticks_of_few_rounds_are_whole(tmp_path, drawn):
    log = tuple({"round": t, "drift": 1.0 + t} for t in range(1, 4))
    plot([RunRecord(Path("a"), "fedavg", 3, 1, log)], tmp_path / "x.png", "drift")
    assert all(float(tick).is_integer() for tick in drawn[0].axes[0].get_xticks())


def test_a_size_without_room_for_curves(tmp_path):
    runs = [seeded(f"r{k}", 0, k / 10, k) for k in range(1, 9)]
    made = Plot(runs, [tmp_path / "x.png"], "drift", style=PlotStyle(size=FigureSize(2, 1)))
    with pytest.raises(JobError, match="--size: 2x1 inches leave no room beside the labels"):
        made.draw()
    assert not (tmp_path / "x.png").exists()


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


def test_every_data_set_has_a_panel_and_an_algorithm_one_colour(tmp_path, drawn):
    names = ["fedavg", "scaffold"]
    runs = [
        seeded(f"{data}-{name}", 0, 0.1, 1.0, **{"algorithm.name": name, "data.kind": data})
        for data, order in (("digits", names), ("cifar10", names[::-1]))
        for name in order
    ]
    plot(runs, tmp_path / "x.png", "drift")
    digits, cifar10 = drawn[0].axes
    assert (digits.get_title(), cifar10.get_title()) == ("digits", "cifar10")
    looks = [{line.get_label(): line.get_color() for line in axes.lines} for axes in drawn[0].axes]
    assert looks[0] == looks[1]
    assert set(looks[0]) == set(names)


def test_many_curves_are_parted_by_splits_and_told_apart(tmp_path, drawn):
    methods = ["fedavg", "fedprox", "scaffold", "feddyn", "fedcm", "fedhbm", "mime", "mimelite"]
    runs = [
        seeded(f"{split}-{name}", 0, 0.1, at, **{
            "algorithm.name": name, "data.partition.kind": "dirichlet",
            "data.partition.alpha": split,
        })
        for split in (0.0, 10000.0) for at, name in enumerate(methods)
    ]  # fmt: skip
    plot(runs, tmp_path / "x.png", "drift")
    assert [axes.get_title() for axes in drawn[0].axes] == ["dirichlet 0", "dirichlet 10000"]
    for axes in drawn[0].axes:
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
        assert len(looks) == len(methods)
        assert legend(axes) == methods[::-1]  # as the curves end, the highest first


def test_data_without_a_partition_have_their_name_in_the_title(tmp_path, drawn):
    methods = ["fedavg", "fedprox", "scaffold", "feddyn", "fedcm", "fedhbm", "mime", "mimelite"]
    runs = [
        seeded(f"{kind}-{name}", 0, 0.1, at, **{
            "algorithm.name": name, "data.kind": "quadratics", "data.partition.kind": kind,
        })
        for kind in (None, "pooled") for at, name in enumerate(methods)
    ]  # fmt: skip
    plot(runs, tmp_path / "x.png", "drift")
    assert [axes.get_title() for axes in drawn[0].axes] == ["quadratics", "quadratics, pooled"]


def test_a_title_says_which_data_model_and_split_are_shown(tmp_path, drawn):
    """Of a single panel too; how many, where they differ; and how the runs were chosen."""
    set_up = {"data.kind": "digits", "model.name": "linear", "data.clients": 20,
              "data.partition.kind": "dirichlet"}  # fmt: skip
    runs = [
        seeded(f"a{alpha}", 0, 0.1, 1.0, **set_up, **{"data.partition.alpha": alpha})
        for alpha in (0.0, 0.3)
    ]
    plot(runs[:1], tmp_path / "x.png", "drift")
    plot(runs, tmp_path / "x.png", "drift")
    style = PlotStyle(note="settings chosen on the validation data", size=FigureSize(3.3, 3))
    Plot(runs[:1], [tmp_path / "x.png"], "drift", style=style).draw()
    titles = [figure.axes[0].get_title() for figure in drawn]
    assert titles[:2] == [
        "digits, linear, dirichlet 0, 20 clients",
        "digits, linear, 2 splits, 20 clients",
    ]
    assert titles[2].replace("\n", " ") == f"{titles[0]} {style.note}"
    assert max(map(len, titles[2].split("\n"))) < 40


def test_one_method_over_many_splits_stays_in_one_panel(tmp_path, drawn):
    runs = [
        seeded(f"a{alpha}", 0, 0.1, 1.0, **{
            "data.partition.kind": "dirichlet", "data.partition.alpha": alpha,
        })
        for alpha in (0.0, 0.05, 0.1, 0.3, 0.5, 1.0, 10.0, 100.0)
    ]  # fmt: skip
    plot(runs, tmp_path / "x.png", "drift")
    (axes,) = drawn[0].axes
    assert legend(axes)[:2] == [
        "fedavg, data.partition.alpha 0.0", "fedavg, data.partition.alpha 0.05",
    ]  # fmt: skip


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


def test_a_dense_end_is_thinned(tmp_path, drawn):
    """Every 100 rounds, and each of the last 100 of 10 000: no two points within 25."""
    log = tuple({"round": t, "drift": 1.0} for t in range(10_001) if t % 100 == 0 or t > 9900)
    plot([RunRecord(Path("r"), "fedavg", 10_000, 100, log)], tmp_path / "x.png", "drift")
    (line,) = drawn[0].axes[0].lines
    assert line.get_xdata().tolist() == [*range(0, 9901, 100), 9925, 9950, 9975, 10_000]


def test_a_picture_in_several_files(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "a.pdf"]
    Plot([run("one")], paths).draw()
    assert [path.read_bytes()[:4] for path in paths] == [b"\x89PNG", b"%PDF"]


def test_of_many_curves_the_best_eight_are_drawn(tmp_path):
    """A line says so; a method has a colour, and its rate a dash."""
    runs = [
        RunRecord(
            *(Path(f"{name}{k}"), name, 4, 0),
            log=({"round": 0, "test_accuracy": 0.0}, {"round": 4, "test_accuracy": (k + 1) / 9}),
            settings={"algorithm.name": name, "local.lr": f"{k}"},
        )
        for name in ("fedavg", "scaffold")
        for k in range(5)
    ]
    made = Plot(runs, [tmp_path / "x.pdf"])
    made.draw()
    assert made.notes == [
        "plot: 8 of the 10 curves are drawn, those that end best; to draw others, report their "
        "directories alone"
    ]
    drawn = made._chosen(made._curves(runs), "")
    assert not any(curve.name.endswith("lr 0") for curve in drawn)
    looks = choose_looks(drawn)
    assert len(set(looks.values())) == 8
    for name in ("fedavg", "scaffold"):
        assert len({look[0] for (algorithm, _), look in looks.items() if algorithm == name}) == 1
    for k in range(1, 5):
        assert len({looks[n, f"{n}, local.lr {k}"][1] for n in ("fedavg", "scaffold")}) == 1


def test_fedavg_keeps_its_colour_beside_a_method_of_the_user():
    curves = [Curve(name, name, "", [0, 1], [0, 1], [], []) for name in ("clip.Clipped", "fedavg")]
    looks = choose_looks(curves)
    assert looks["fedavg", "fedavg"][0] == COLOURS[0]
    assert looks["clip.Clipped", "clip.Clipped"][0] != COLOURS[0]


def test_a_title_names_no_class_of_hpcfl(tmp_path, drawn):
    """Of a run with objects of a script: its data and model are the user's."""
    kinds = {"data.kind": "hpcfl.data.objects.KeptArrays", "model.name": "module"}
    plot([seeded("a", 0, 0.1, 1.0, **kinds)], tmp_path / "x.png", "drift")
    assert drawn[0].axes[0].get_title() == "own data, own model"
