"""Plot the log against rounds, bytes or time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple, get_args
from zlib import crc32

import numpy as np

from hpcfl.errors import JobError, printable
from hpcfl.runs.job_file.settings import SEED
from hpcfl.runs.job_file.words import suggestion
from hpcfl.runs.record import RunRecord
from hpcfl.runs.run_score import Quantity, is_of_x
from hpcfl.runs.score_names import SCORES, score_named
from hpcfl.tools.report.columns import mean_and_std
from hpcfl.tools.report.groups import labels, seed_groups
from hpcfl.tools.report.plots.figure import COLOURS, check_plot, new_figure, save
from hpcfl.tools.report.published import set_up
from hpcfl.tools.report.set_ups import differing, method_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 12  # curves that can be told apart
FEW = 30  # points, each of which has a marker
FIRST = ("fedavg", "fedhbm", "scaffold", "fedprox", "mime", "feddyn", "fedadam")  # by COLOURS
DASHES = ("-", "--", ":", "-.")
WIDTH = 44  # letters of a line of the legend; of the title 1.5 times as many
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
_TIME = ((3600, "h"), (60, "min"), (1, "s"))
SIMULATED = "simulated"
SPENT = {
    "bytes": (("down_bytes", "up_bytes"), "sent up and down", _BYTES),
    "time": (("wall_s",), "wall time of the rounds", _TIME),
    SIMULATED: ((), "simulated time", _TIME),
}
"""Axes other than rounds: keys of the log that are added up, a label, units."""
_OWN = {"hpcfl.data.objects.KeptArrays": "own data", "module": "own model"}  # as titles say


class Curve(NamedTuple):
    """A run, or the mean of several that differ in the seed alone."""

    algorithm: str
    name: str
    """What distinguishes it in the plot: the algorithm, and the settings that differ."""
    label: str
    """The entry of the legend."""
    x: Sequence[float]
    y: Sequence[float]
    deviation: Sequence[float]
    """Sample standard deviations, or nothing of a single run."""


class Plot:
    """A number of the log against rounds, bytes or time.

    Runs that differ in the seed alone are one curve, their mean, in a band of +- their sample
    standard deviation; seeds that are not as far as the others are left out.  An algorithm has a
    colour, the same in every plot as far as it is free, and its settings have dashes.  The title
    has the data, model, split and clients that all runs share.  The axis of y is logarithmic where
    positive numbers other than accuracies span a factor of ten.

    Args:
        runs: any; those without the number are left out.
        paths: the .png, .pdf or .svg files to write.
        y: the number's key in log.jsonl; when absent, the test accuracy of the model that a run
            counts by, its loss where nothing is classified, or the objective where nothing is
            tested.
        x: rounds, bytes (sent up and down so far), time (of the rounds so far) or simulated (time
            of the devices).
        note: the second line of the title.

    Raises:
        JobError: no run has such a number yet, or a file cannot be written.
    """

    def __init__(
        self,
        runs: Sequence[RunRecord],
        paths: Sequence[Path],
        y: str | None = None,
        x: str = "rounds",
        note: str = "",
    ) -> None:
        if x != "rounds" and x not in SPENT:
            *others, last = ("rounds", *SPENT)
            raise JobError(f"x: found {x!r}, expected {', '.join(others)} or {last}")
        for path in paths:
            check_plot(path)
        self._paths, self._x, self._note = paths, x, note
        self._key, self._chosen_by_user = y or _score(runs), y is not None
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
            DiskError: the disk is full or fails.
            JobError: one cannot be written.
        """
        figure, (axes,) = new_figure(6.4, 4.0)
        figure.set_layout_engine("none")  # the legend widens the picture, not narrows the axes
        curves = self._drawn_curves()
        title = [fill(printable(t), 3 * WIDTH // 2) for t in (_title(self._runs), self._note) if t]
        axes.set_title("\n".join(title), fontsize="medium", parse_math=False)
        self._draw(axes, curves)
        legend = axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.02))
        for text in legend.get_texts():
            text.set_parse_math(False)  # a dollar sign in a name begins no formula
        save(figure, self._paths)

    def _draw(self, axes: Axes, curves: Sequence[Curve]) -> None:
        from matplotlib.ticker import MaxNLocator

        score, most = score_named(self._key), max(curve.x[-1] for curve in curves)
        along, unit = "round", 1.0
        if self._x in SPENT:
            _, along, units = SPENT[self._x]
            unit, name = next((one for one in units if most >= one[0]), units[-1])
            along += f", {name}"
        looks, scale = _choose_looks(curves), 100 if score.percent else 1
        for curve in curves:
            colour, dash = looks[curve.name]
            x, y = np.array(curve.x) / unit, scale * np.array(curve.y)
            mark = "o" if len(x) <= FEW else None
            axes.plot(x, y, color=colour, ls=dash, lw=1.2, marker=mark, ms=3, label=curve.label)
            if curve.deviation:
                band = scale * np.array(curve.deviation)
                axes.fill_between(x, y - band, y + band, color=colour, alpha=0.15, linewidth=0)
        values = [value for curve in curves for value in curve.y if isfinite(value)]
        if values and not score.percent and 0 < 10 * min(values) <= max(values):
            axes.set_yscale("log")
            axes.set_ylim(bottom=min(values) / 1.5)  # a band may come near 0
        keys = {self._key_of(run) for run in self._runs}
        key = keys.pop() if len(keys) == 1 else score.key
        percent = ", %" if score.percent else ""
        axes.set_ylabel(printable(key.replace("_", " ") + percent), parse_math=False)
        axes.set_xlabel(along)
        axes.set_xlim(0, most / unit or 1)
        axes.xaxis.set_major_locator(
            MaxNLocator(6, steps=(1, 2, 5, 10), integer=self._x == "rounds")
        )
        axes.grid(visible=True, which="both", color="0.9", linewidth=0.7)

    def _drawn_curves(self) -> list[Curve]:
        """At most MOST curves, in the order in which they end, the highest first.

        Those that end best are drawn, or the first ones, where neither high nor low numbers are
        good; ``notes`` says so.
        """
        curves, better = self._curves(), score_named(self._key).better
        if len(curves) > MOST:
            which = "that end best" if better else "that were named first"
            self.notes.append(
                f"plot: {MOST} of the {len(curves)} curves are drawn, those {which}; to draw "
                "others, report their directories alone"
            )
        if better:
            curves.sort(key=_by_end(highest_first=better == "higher"))
        return sorted(curves[:MOST], key=_by_end(highest_first=True))

    def _curves(self) -> list[Curve]:
        groups = [[self._runs[index] for index in group] for group in _seeds(self._runs)]
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
        found = [(dict(run.curve(self._key_of(run))), _x_by_round(run, self._x)) for run in runs]
        furthest = max(max(y) for y, _ in found)
        leading = [pair for pair in found if max(pair[0]) == furthest]
        common = sorted(set.intersection(*(set(y) for y, _ in leading)))
        means = [mean_and_std([y[t] for y, _ in leading]) for t in common]
        return Curve(
            runs[0].algorithm,
            name,
            fill(printable(name + _progress_note(runs, len(leading))), WIDTH),
            [fmean(x[t] for _, x in leading) for t in common],
            [mean for mean, _ in means],
            [std for _, std in means if std is not None],
        )


def _by_end(*, highest_first: bool) -> Callable[[Curve], tuple[bool, float]]:
    """A key that sorts curves by their last values; those that are not finite come last."""
    sign = -1 if highest_first else 1
    return lambda curve: (not isfinite(curve.y[-1]), sign * curve.y[-1])


def _choose_looks(curves: Sequence[Curve]) -> dict[str, tuple[str, str]]:
    """A colour and a dash for each curve, by its name.

    An algorithm has one colour, or one for each variant where it is alone or has more of them than
    there are dashes.  Those of FIRST have the same colour in every plot, others one that their name
    gives, or the next that is free.
    """
    several = Counter(curve.algorithm for curve in curves)
    by_algorithm = len(several) > 1 and max(several.values()) <= len(DASHES)
    count, colours, used = len(COLOURS), dict[str, int](), Counter[int]()
    looks: dict[str, tuple[str, str]] = {}
    for curve in sorted(curves, key=lambda curve: (curve.algorithm not in FIRST, curve[:2])):
        owner, taken = curve.algorithm if by_algorithm else curve.name, Counter(colours.values())
        known = curve.algorithm in FIRST
        own = FIRST.index(curve.algorithm) if known else crc32(curve.algorithm.encode())
        if owner not in colours:
            colours[owner] = min(range(count), key=lambda c: (taken[c], (c - own) % count))
        colour = colours[owner]
        looks[curve.name] = COLOURS[colour], DASHES[used[colour] % len(DASHES)]
        used[colour] += 1
    return looks


def _title(runs: Sequence[RunRecord]) -> str:
    """What all runs share: "digits, linear, dirichlet 0, 20 clients"."""
    words = []
    for name in ("data", "model", "split", "clients"):
        first, *others = {set_up(run.settings)[name] for run in runs}
        if not others and first != "None":
            words.append(f"{first} clients" if name == "clients" else _OWN.get(first, first))
    return ", ".join(dict.fromkeys(words))  # data without a partition are their own split


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
