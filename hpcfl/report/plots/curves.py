"""Plot the log against rounds, bytes or time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple, get_args

from hpcfl.errors import JobError, printable
from hpcfl.job_file.settings import SEED, distinguishing_settings
from hpcfl.job_file.words import suggestion
from hpcfl.report.columns import mean_and_std
from hpcfl.report.groups import labels, seed_groups
from hpcfl.report.plots.drawing import (
    FEW,
    MOST,
    Curve,
    add_legend,
    choose_looks,
    draw_curve,
    has_room,
)
from hpcfl.report.plots.figure import (
    FigureSize,
    check_plot,
    check_text,
    lay_out,
    new_figure,
    save,
)
from hpcfl.report.published import set_up
from hpcfl.report.set_ups import (
    differing,
    identities,
    method_names,
    set_up_labels,
    settings_of_set_ups,
)
from hpcfl.runs.record import RunRecord
from hpcfl.runs.run_score import Quantity, is_of_x
from hpcfl.runs.score_names import SCORES, score_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 400  # of a curve, evenly spaced; more are not distinguishable
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
_TIME = ((3600, "h"), (60, "min"), (1, "s"))
LETTERS = 11  # of a title, in an inch
_PLURALS = {
    "data": "data sets",
    "model": "models",
    "split": "splits",
    "clients": "numbers of clients",
    "cohort": "cohorts",
}
_OWN = {"hpcfl.data.objects.KeptArrays": "own data", "module": "own model"}  # as titles say
_IN_TITLES = ("data", "model", "split", "clients")
SIMULATED = "simulated"
SPENT = {
    "bytes": (("down_bytes", "up_bytes"), "sent up and down", _BYTES),
    "time": (("wall_s",), "wall time of the rounds", _TIME),
    SIMULATED: ((), "simulated time", _TIME),
}
"""Axes other than rounds: keys of the log that are added up, a label, units."""


class PlotStyle(NamedTuple):
    """How a plot is labelled, and its size."""

    xlabel: str | None = None
    """Of the horizontal axis; None: the rounds, bytes or time with their unit."""
    ylabel: str | None = None
    """Of the vertical axis; None: the key of the log."""
    note: str = ""
    """How the runs were chosen, for the title."""
    size: FigureSize | None = None
    """Of the whole picture; None: as large as its panels and legends need."""

    def check(self) -> None:
        """Refuse texts that cannot be written.

        Raises:
            JobError: the mathematics of one is not matplotlib's.
        """
        for option, text in (("--xlabel", self.xlabel), ("--ylabel", self.ylabel)):
            check_text(option, text or "")


class Plot:
    """A number of the log against rounds, bytes or time.

    Runs that differ in the seed alone are one curve, their mean, in a band of +- their sample
    standard deviation; those that are not as far as the others are thin lines.  Each data
    set and model has a panel; with many curves, each split, number of clients and cohort too.  An
    algorithm has the same colour in every plot, as far as two in one plot do not claim the same.
    A title names the data, model, split and clients of its panel.
    A branch has a curve from its first round on, and its parent's is before.

    Of thousands of evaluations every so many-th is drawn.

    The legend of a few curves is inside of the axes, where it covers the least, else beside them.

    Losses are drawn on a log scale where all are positive, other numbers but accuracies where
    they also span a factor of ten.

    Args:
        runs: any; those without the number are left out.
        paths: the .png, .pdf or .svg files to write.
        y: the number's key in log.jsonl; when absent, the test accuracy of the model that a run
            counts by, its loss where nothing is classified, or the objective where nothing is
            tested.
        x: rounds, bytes (sent up and down so far), time (of the rounds so far) or simulated (time
            of the devices).
        style: its labels and size.

    Raises:
        JobError: no run has such a number yet, a label cannot be written, or a file cannot be.
    """

    def __init__(
        self,
        runs: Sequence[RunRecord],
        paths: Sequence[Path],
        y: str | None = None,
        x: str = "rounds",
        style: PlotStyle | None = None,
    ) -> None:
        if x != "rounds" and x not in SPENT:
            *others, last = ("rounds", *SPENT)
            raise JobError(f"x: found {x!r}, expected {', '.join(others)} or {last}")
        self._paths, self._style = paths, style or PlotStyle()
        self._style.check()
        for path in paths:
            check_plot(path)
        self._key, self._x, self._chosen_by_user = y or _score(runs), x, y is not None
        self._runs = [run for run in runs if run.curve(self._key_of(run)) and _x_by_round(run, x)]
        self.without = [run for run in runs if run not in self._runs]
        """The runs that are left out."""
        self.notes: list[str] = []
        """Lines about runs and curves that are not drawn; of curves once it is drawn."""
        if self.without:
            names = ", ".join(str(run.path) for run in self.without)
            self.notes.append(f"plot: without {names}, which have no such number yet")
        if not self._runs:
            names = ", ".join(str(run.path) for run in runs[:3]) + (", ..." if runs[3:] else "")
            if any(run.curve(self._key_of(run)) for run in runs):
                what = "simulated time, as the job has no devices" if x == SIMULATED else x
                raise JobError(f"{names}: log.jsonl counts no {what}, so nothing to plot against")
            found = sorted({name for run in runs for entry in run.log for name in entry})
            raise JobError(
                f"{names}: no round in log.jsonl has {self._key!r}, so nothing to plot; found "
                f"{', '.join(found) or 'no round yet'}{suggestion(self._key, found)}"
            )

    def _key_of(self, run: RunRecord) -> str:
        """The key of a run; by default each is drawn by the score that it counts by."""
        of_runs = () if self._chosen_by_user else get_args(Quantity)
        quantity = next((name for name in of_runs if name == self._key), None)
        return self._key if quantity is None else run.score_key(quantity)

    def draw(self) -> None:
        """Write the files.

        Raises:
            JobError: one cannot be written, or the chosen size has no room for the curves.
        """
        panels = {t: self._chosen(self._curves(r), t) for t, r in _panels(self._runs).items()}
        looks = choose_looks([curve for curves in panels.values() for curve in curves])
        many = any(not has_room(curves) for curves in panels.values())
        across = 1 if many else min(2, len(panels))
        width = 8.5 if many else 7.0 if across == 1 else 11.0
        lines = max(sum(c.label.count("\n") + 1 for c in curves) for curves in panels.values())
        height = max(4.2, 0.2 * lines + 0.4) if many else 4.2
        down = -(-len(panels) // across)
        width, height = self._style.size or (width, height * down)
        figure, axes = new_figure(width, height, down, across)
        room = int(LETTERS * width / across)
        for place, (title, curves) in zip(axes, panels.items(), strict=False):
            texts = [fill(printable(text), room) for text in (title, self._style.note) if text]
            place.set_title("\n".join(texts), fontsize="medium", parse_math=False)
            self._draw(place, curves, looks)
        for place in axes[len(panels) :]:
            place.remove()
        lay_out(figure)
        save(figure, self._paths)

    def _chosen(self, curves: list[Curve], title: str) -> list[Curve]:
        """At most MOST curves of a panel, those that end best; ``notes`` says which are left out.

        Where neither high nor low numbers are good, the first ones are taken.
        """
        if len(curves) <= MOST:
            return curves
        better = score_named(self._key).better
        ends = {id(curve): curve.y[-1] * (-1 if better == "higher" else 1) for curve in curves}
        by_end = sorted(curves, key=lambda c: (not isfinite(c.y[-1]), ends[id(c)]))
        drawn = by_end[:MOST] if better else curves[:MOST]
        of = f" of {title}" if title else ""
        which = "that end best" if better else "that were named first"
        self.notes.append(
            f"plot: {MOST} of the {len(curves)} curves{of} are drawn, those {which}; to draw "
            "others, report their directories alone"
        )
        return [curve for curve in curves if curve in drawn]

    def _draw(
        self, axes: Axes, curves: Sequence[Curve], looks: Mapping[tuple[str, str], tuple[str, str]]
    ) -> None:
        """Fill a panel."""
        from matplotlib.ticker import MaxNLocator

        score, few = score_named(self._key), has_room(curves)
        size, along = self._unit(curves)
        for curve in curves:
            draw_curve(axes, curve, size, 100 if score.percent else 1, looks[curve[:2]], few=few)
        values = [value for curve in curves for value in curve.y]
        least, most = min(values), max(values)
        wide = score.better == "lower" or most >= 10 * least
        if least > 0 and not score.percent and wide:
            axes.set_yscale("log")
        style, unit = self._style, ", %" if score.percent else ""
        axes.set_xlabel(along if style.xlabel is None else style.xlabel)
        if style.ylabel is None:
            keys = {self._key_of(run) for run in self._runs}
            scale = f"{(keys.pop() if len(keys) == 1 else score.key).replace('_', ' ')}{unit}"
            axes.set_ylabel(printable(scale), parse_math=False)
        else:
            axes.set_ylabel(style.ylabel)
        axes.grid(visible=True, which="both", color="0.9", linewidth=0.7)
        if self._x == "rounds":
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.set_xlim(0, max(map(_furthest, curves)) / size or 1)
        add_legend(axes, curves, few=few)

    def _unit(self, curves: Sequence[Curve]) -> tuple[float, str]:
        """The divisor of x, and the axis's label."""
        if self._x not in SPENT:
            return 1, "round"
        _, label, units = SPENT[self._x]
        most = max(map(_furthest, curves))
        size, name = next((unit for unit in units if most >= unit[0]), units[-1])
        return size, f"{label}, {name}"

    def _curves(self, runs: Sequence[RunRecord]) -> list[Curve]:
        groups = [[runs[index] for index in group] for group in _seeds(runs)]
        return [
            self._curve(name + self._model_note(group[0]), group)
            for name, group in zip(_names(groups), groups, strict=True)
        ]

    def _model_note(self, run: RunRecord) -> str:
        """The model that the curve is of, where it is not a global one that is trained."""
        key, own = self._key_of(run), run.own_models
        if own is None:
            return ""
        if is_of_x(key):
            return f" (x{own.of_x})" if own.of_x else ""
        return f" ({run.score_of})" if key.startswith("personal_") else ""

    def _curve(self, name: str, runs: Sequence[RunRecord]) -> Curve:
        found = [(_own(run, self._key_of(run)), _x_by_round(run, self._x)) for run in runs]
        furthest = max(max(y) for y, _ in found)
        leading = [pair for pair in found if max(pair[0]) == furthest]
        common = _thinned(sorted(set.intersection(*(set(y) for y, _ in leading))))
        means = [mean_and_std([y[t] for y, _ in leading]) for t in common]
        return Curve(
            runs[0].algorithm,
            name,
            _progress_note(runs, len(leading)),
            [fmean(x[t] for _, x in leading) for t in common],
            [mean for mean, _ in means],
            [std for _, std in means if std is not None],
            [([x[t] for t in y], list(y.values())) for y, x in found if max(y) < furthest],
        )


def _thinned(rounds: Sequence[int]) -> list[int]:
    """At most POINTS of them, and the last: many evaluations at the end would be a blot."""
    step = (rounds[-1] - rounds[0]) / POINTS
    kept: list[int] = []
    for t in rounds:
        if not kept or t - kept[-1] >= step:
            kept.append(t)
    return kept if kept[-1] == rounds[-1] else [*kept, rounds[-1]]


def _panels(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs by titles, in order of appearance."""
    curves = len(_seeds(runs))
    panels = _parted(runs, ("data", "model", "split", "clients", "cohort"))
    if curves > FEW and 2 * len(panels) <= curves:
        return panels
    return _parted(runs, ("data", "model"))  # few curves, or there would be one in each


def _parted(runs: Sequence[RunRecord], by: Sequence[str]) -> dict[str, list[RunRecord]]:
    panels: dict[tuple[str, ...], list[RunRecord]] = {}
    for run, identity in zip(runs, identities(runs), strict=True):
        own = set_up(run.settings)
        key = [own[name] for name in by]
        if "split" in by:  # what else methods are compared on, such as two files of one kind
            key.append(identity)
        panels.setdefault(tuple(key), []).append(run)
    cohorts = len({key[by.index("cohort")] for key in panels}) > 1 if "cohort" in by else False
    shown = [*_IN_TITLES, *(["cohort"] if cohorts else [])]
    titles = [_title(members, shown) for members in panels.values()]
    firsts = [members[0] for members in panels.values()]
    again = _repeated(titles)
    return {
        ", ".join(filter(None, [title, apart if title in again else ""])): members
        for title, apart, members in zip(
            titles, _differing_set_ups(firsts), panels.values(), strict=True
        )
    }


def _differing_set_ups(runs: Sequence[RunRecord]) -> list[str]:
    """What tells the set-ups of these runs apart: labels of their sweep, or settings."""
    labelled = set_up_labels(runs)
    if any(labelled):
        return labelled
    return distinguishing_settings(settings_of_set_ups(runs))


def _title(runs: Sequence[RunRecord], shown: Sequence[str]) -> str:
    """The data, model, split and clients of a panel: "digits, linear, dirichlet 0, 20 clients"."""
    words = []
    for name in shown:
        first, *others = dict.fromkeys(set_up(run.settings)[name] for run in runs)
        if others:
            words.append(f"{1 + len(others)} {_PLURALS[name]}")
        elif first != "None":
            words.append(f"{first} clients" if name == "clients" else _OWN.get(first, first))
    return ", ".join(dict.fromkeys(words))  # data without a partition are their own split


def _furthest(curve: Curve) -> float:
    """The largest x of a curve, and of the seeds that are not as far."""
    return max([*curve.x, *(x for xs, _ in curve.unfinished_seeds for x in xs)])


def _names(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """The shortest label of each group of seeds that distinguishes it from the others."""
    firsts = [group[0] for group in groups]
    names = method_names(firsts)
    for algorithm in _repeated(names):
        alike = [index for index, name in enumerate(names) if name == algorithm]
        for index, text in zip(
            alike, differing([firsts[i] for i in alike], but=[SEED]), strict=True
        ):
            names[index] = ", ".join(filter(None, [algorithm, text]))
    again = _repeated(names)
    folders = labels([group[0].path for group in groups])
    return [
        f"{name}, {folder}" if name in again and not group[1:] else name
        for name, folder, group in zip(names, folders, groups, strict=True)
    ]


def _repeated(names: Sequence[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _progress_note(runs: Sequence[RunRecord], leading: int) -> str:
    """How many seeds are in the mean, and how far they are if none is finished."""
    some = f"{leading} of " if leading < len(runs) else ""
    parts = [f"{some}{len(runs)} seeds"] if runs[1:] else []
    if not any(run.finished for run in runs):
        parts.append(f"{max(run.done for run in runs)} of {runs[0].rounds} rounds")
    return f" ({', '.join(parts)})" if parts else ""


def _own(run: RunRecord, key: str) -> dict[int, float]:
    """The values by round; of a branch, from the last evaluation up to its first round on."""
    curve = dict(run.curve(key))
    first = run.branches[-1].round if run.branches else 0
    before = max((t for t in curve if t <= first), default=0)
    return {t: value for t, value in curve.items() if t >= before}


def _x_by_round(run: RunRecord, x: str) -> Mapping[int, float]:
    """The x of each round; empty if the log lacks the key."""
    if x == SIMULATED:
        return run.simulated
    if x in SPENT:
        return run.cumulative(*SPENT[x][0])
    return {entry["round"]: entry["round"] for entry in run.log}


def _seeds(runs: Sequence[RunRecord]) -> list[list[int]]:
    """Groups that differ in the seed alone; a job that is there twice has a group of its own."""
    groups = seed_groups(runs)
    placed = {index for group in groups for index in group}
    return sorted([*groups, *([index] for index in range(len(runs)) if index not in placed)])


def _score(runs: Sequence[RunRecord]) -> str:
    """The key that is plotted if the user names none; a ``Quantity`` of the model of each run.

    Raises:
        JobError: no run has an evaluation yet, or only some of those that have, an accuracy.
    """
    shown = [key for key, score in SCORES.items() if score.title]
    judged = [run for run in runs if any(run.scores[key] for key in shown)]
    if not judged:
        raise JobError(f"{runs[0].path}: no evaluated round in log.jsonl yet, so nothing to plot")
    without = [run for run in judged if not run.scores[run.score_key("accuracy")]]
    if not without:
        return "accuracy"
    if len(without) < len(judged):
        raise JobError(
            f"{without[0].path}: has no test accuracy, as other runs of this plot have; "
            "plot regression and classification apart"
        )
    if all(run.scores[run.score_key("loss")] for run in judged):
        return "loss"
    key = next((key for key in shown if all(run.scores[key] for run in judged)), None)
    if key is None:
        raise JobError(
            "some of these runs have only a test loss, others only an objective; plot them apart"
        )
    return key
