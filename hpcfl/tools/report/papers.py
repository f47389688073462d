"""Lay out tables as papers print them: algorithms by set-ups, with the published numbers.

A row is an algorithm, and a column a set-up: data, model, split, clients, cohort and what else
methods are compared on, by the labels of the sweep's grid where there are some.  Runs that
differ in the seed alone share a cell.
"""

from collections import Counter
from collections.abc import Sequence
from math import isnan
from typing import NamedTuple

from hpcfl.errors import JobError
from hpcfl.runs.record import RunRecord
from hpcfl.tools.report.columns import mean_and_std, number, percent, seeds_note, spread
from hpcfl.tools.report.comparison import (
    ACCURACIES,
    fraction,
    places,
    printed,
    with_published,
)
from hpcfl.tools.report.grid import Grid, Method, SetUp, read_grid
from hpcfl.tools.report.groups import (
    diverged_note,
    run_captions,
    score_captions,
    score_mark,
    seed_captions,
    x_mark,
)
from hpcfl.tools.report.published import Published, find
from hpcfl.tools.report.rounds_to_target import (
    BASELINE,
    Target,
    TargetRounds,
    target_rounds,
    with_target,
)
from hpcfl.tools.report.table import Report, Table, Value, with_settings

_SEVERAL_SETTINGS = (
    "several rows of an algorithm: taking the best of them is a choice on the test set; "
    "--chosen makes it on validation data"
)

# The meaning of signs in our cells.
_SIGNS = {
    "n=": "n: seeds; +-: their sample standard deviation",
    "@": "@t/T: of an unfinished run, the newest accuracy, after t of its T rounds",
    "x": "(x): the speed-up over FedAvg; n where it is a mean of fewer seeds than the rounds",
    ">": "> t: no run reached the target in t rounds",
}


class _Cell(NamedTuple):
    """One number, ours or a paper's."""

    text: str = "-"
    mean: float | None = None
    """Accuracies as fractions."""
    std: float | None = None
    metric: str = ""
    members: int = 0
    """The number of runs that the mean is over."""
    baseline: str = ""
    """Of a speed-up: the FedAvg runs whose rounds it divides."""
    competes: bool = False
    """Whether it may be marked as the best of its column.

    False where all runs are unfinished, and where not every seed reached the target.
    """


class _Pair(NamedTuple):
    ours: _Cell
    theirs: _Cell
    source: str = ""


_Pairs = dict[tuple[Method, SetUp], _Pair]


def as_papers(runs: Sequence[RunRecord], targets: Sequence[Target] = ()) -> Report:
    """Final accuracies, and for each target a table of the rounds to it.

    Accuracies are laid out as tables 3 and 4 of the FedHBM paper, rounds to a target as tables 2
    and 9.  The values for programs (CSV) have a row for each number: its set-up
    and metric, ours, and the published one.

    Raises:
        JobError: no run has a test accuracy, or no paper prints the accuracy that a target is a
            percentage of.
    """
    if not any(_accuracies_of(run) for run in runs):
        raise JobError(
            f"{runs[0].path}: no run has a test accuracy, which is what the papers' tables hold; "
            "report without --layout paper"
        )
    grid = read_grid(runs)
    parts = [_accuracies(runs, grid)]
    parts += [_rounds(runs, grid, target) for target in targets]
    return Report(
        [table for part in parts for table in part.tables],
        [value for part in parts for value in part.values],
    )


def _accuracies(runs: Sequence[RunRecord], grid: Grid) -> Report:
    groups = [[runs[index] for index in members] for members in grid.cells.values()]
    meanings = {final.metric: final.meaning for group in groups for final in _finals(group)}
    for run in runs:  # none of some job may be finished
        if (model := _scored_model(run))[0] != "accuracy" and not run.finished:
            meanings.setdefault(*model)
    # Cells of other metrics than the first have a mark, as they cannot be compared with it.  The
    # first is one of x, as those of papers are, if there is any.
    ordered = sorted(meanings, key=lambda metric: not metric.startswith("accuracy"))
    marks = {metric: "*" * number for number, metric in enumerate(ordered)}
    pairs: _Pairs = {}
    for row in grid.rows:
        for column in grid.columns:
            members = [runs[index] for index in grid.cells.get((row, column), ())]
            rows = find(grid.job(row, column), *ACCURACIES)
            ours = _accuracy(members)
            mark = marks.get(ours.metric, "") + diverged_note(members)
            pairs[row, column] = _Pair(
                ours._replace(text=ours.text + mark), _printed(rows), places(rows)
            )
    meant = [f"with {mark}, {meanings[metric]}" for metric, mark in marks.items() if mark]
    captions = [f"ours: {'; '.join([meanings[next(iter(marks))], *meant])}"] if marks else []
    captions += [*_signs(pairs), *with_published(runs).captions]
    if len({row.algorithm for row in grid.rows}) < len(grid.rows):
        captions.append(_SEVERAL_SETTINGS)
    captions += [*seed_captions(runs, list(grid.cells.values())), *run_captions(runs)]
    return _lay_out(grid, pairs, "%", captions, higher_is_better=True)


def _signs(pairs: _Pairs) -> list[str]:
    """Captions that explain the signs in these cells."""
    texts = [pair.ours.text for pair in pairs.values()]
    return [meaning for sign, meaning in _SIGNS.items() if any(sign in text for text in texts)]


class _Final(NamedTuple):
    """The final accuracy of a finished run."""

    value: float
    metric: str
    meaning: str


def _finals(runs: Sequence[RunRecord]) -> list[_Final]:
    """The final accuracies of the finished runs, all by the first metric that each of them has.

    The metrics are the mean of the last 100 rounds, that of the job's window, and the last
    accuracy.  One metric for all, because a mean over seeds of different metrics means nothing.

    Args:
        runs: which differ in the seed alone.
    """
    each = [finals for run in runs if (finals := _final_accuracies(run))]
    shared = next((m for m in each[0] if all(m in finals for finals in each)), "") if each else ""
    return [finals[shared] for finals in each]


def _final_accuracies(run: RunRecord) -> dict[str, _Final]:
    """The final accuracies of a run by metric, the preferred one first; none if unfinished."""
    last = run.last(run.score_key("accuracy"))
    if not run.finished or last is None:
        return {}
    finals = {}
    metric, what = _scored_model(run)
    for window, mean in (
        (100, run.accuracy_last100),
        (min(run.window, run.rounds), run.mean_accuracy),
    ):
        if mean is not None:
            meaning = f"mean {what} of the last {window} rounds"
            finals[f"{metric}_last{window}"] = _Final(mean, f"{metric}_last{window}", meaning)
    finals[f"{metric}_last"] = _Final(last, f"{metric}_last", f"{what} after the last round")
    return finals


def _accuracies_of(run: RunRecord) -> Sequence[tuple[int, float]]:
    """(round, accuracy) of the model that the run counts by."""
    return run.scores[run.score_key("accuracy")]


def _scored_model(run: RunRecord) -> tuple[str, str]:
    """The name of the run's accuracy as a metric, and in words: of which model, on what."""
    own = run.own_models
    if own is not None and run.personal:
        metric = "personal_train_accuracy" if own.tested_on == "train" else "personal_accuracy"
        return metric, f"accuracy of the clients' own models on {own.examples}"
    if own is not None and own.of_x:
        return f"{own.x.replace(' ', '_')}_accuracy", f"test accuracy (of x{own.of_x})"
    return "accuracy", "test accuracy"


def _accuracy(runs: Sequence[RunRecord]) -> _Cell:
    """The mean final accuracy of the finished runs, or the newest accuracies if none is finished.

    Args:
        runs: which differ in the seed alone.
    """
    finals = _finals(runs)
    if finals:
        values = [final.value for final in finals]
        competes = all(run.finished and not run.diverged for run in runs)
        competes &= runs[0].personal or not x_mark(runs[0])
        seeds = seeds_note(len(finals), len(runs))
        return _mean(values, finals[0].metric, seeds, competes=competes)
    newest = [scores[-1] for run in runs if (scores := _accuracies_of(run))]
    if not newest:
        return _Cell()
    at = sorted({t for t, _ in newest})
    after = f" @{'-'.join(str(t) for t in dict.fromkeys((at[0], at[-1])))}/{runs[0].rounds}"
    after += " failed" if all(run.state == "failed" for run in runs) else ""
    after += seeds_note(len(newest), len(runs))
    metric, _ = _scored_model(runs[0])
    return _mean([value for _, value in newest], metric, after, competes=False)


def _mean(values: Sequence[float], metric: str, after: str, *, competes: bool) -> _Cell:
    text = spread(values, percent) + after
    return _Cell(text, *mean_and_std(values), metric, len(values), competes=competes)


def _printed(rows: Sequence[Published]) -> _Cell:
    """The accuracy that a paper prints."""
    if not rows or rows[0].value is None:
        return _Cell()
    row, value = rows[0], rows[0].value
    return _Cell(
        printed(row), fraction(value), fraction(row.std), row.metric, competes=not isnan(value)
    )


def _rounds(runs: Sequence[RunRecord], grid: Grid, target: Target) -> Report:
    reached = target_rounds(runs, target)
    metrics = target.metrics
    name = f"{target.number:g}"
    pairs: _Pairs = {}
    speedups: _Pairs = {}
    for row in grid.rows:
        for column in grid.columns:
            job = grid.job(row, column)
            members = grid.cells.get((row, column), ())
            rows = find(job, metrics[0]) if metrics else []
            speeds = find(job, metrics[1]) if metrics else []
            ours = _rounds_cell(runs, reached, members)
            mark = score_mark(runs[members[0]]) if members else ""
            pairs[row, column] = _Pair(
                ours._replace(text=ours.text + mark, metric=f"rounds_to_{name}"),
                _printed_rounds(rows, speeds),
                places(rows),
            )
            speedups[row, column] = _Pair(
                _speedup(reached, members)._replace(metric=f"speedup_{name}"),
                _printed_speedup(speeds),
                places(speeds),
            )
    captions = [*_signs(pairs), *with_target(runs, target).captions, *score_captions(runs)]
    part = _lay_out(grid, pairs, f"to {target.title}", captions, higher_is_better=False)
    if not any(run.algorithm == BASELINE for run in runs):
        return part
    return part._replace(
        values=[*part.values, *(_value(grid, *cell, pair) for cell, pair in speedups.items())],
    )


def _rounds_cell(runs: Sequence[RunRecord], reached: TargetRounds, members: Sequence[int]) -> _Cell:
    """The rounds and the speed-up of runs that differ in the seed, each with its own count."""
    if not members:
        return _Cell()
    rounds = [count for index in members if (count := reached.rounds[index]) is not None]
    if not rounds:
        return _Cell(f"> {max(runs[index].done for index in members)}")
    speed = _speedup(reached, members)
    fewer = f", n={speed.members}" if speed.members != len(rounds) else ""
    faster = f" ({speed.mean:.2f}x{fewer})" if speed.mean is not None else ""
    text = spread(rounds, number("{:.0f}")) + faster + seeds_note(len(rounds), len(members))
    competes = len(rounds) == len(members)
    return _Cell(text, *mean_and_std(rounds), members=len(rounds), competes=competes)


def _speedup(reached: TargetRounds, members: Sequence[int]) -> _Cell:
    """The speed-up over the seeds in which both the run and its baseline reached the target."""
    speeds = [times for index in members if (times := reached.speedups[index]) is not None]
    if not speeds:
        return _Cell()
    labels = dict.fromkeys(base.label for index in members if (base := reached.baselines[index]))
    return _Cell("", *mean_and_std(speeds), members=len(speeds), baseline="; ".join(labels))


def _printed_rounds(rows: Sequence[Published], speeds: Sequence[Published]) -> _Cell:
    if not rows:
        return _Cell()
    if rows[0].value is None:
        return _Cell("never")
    value = rows[0].value
    printed = _printed_speedup(speeds).mean
    speed = "" if printed is None else f" ({printed:.2f}x)"
    return _Cell(f"{value:.0f}{speed}", value, None, rows[0].metric, competes=True)


def _printed_speedup(speeds: Sequence[Published]) -> _Cell:
    if not speeds or speeds[0].value is None:
        return _Cell()
    return _Cell("", speeds[0].value, None, speeds[0].metric)


def _lay_out(
    grid: Grid,
    pairs: _Pairs,
    unit: str,
    captions: Sequence[str],
    *,
    higher_is_better: bool,
) -> Report:
    """The table, and its values for programs.

    Args:
        grid: the rows and columns.
        pairs: the numbers of each cell, ours and published.
        unit: of our numbers, for the titles.
        captions: lines below the table.
        higher_is_better: whether the best number of a column is the largest.
    """
    names = grid.names()
    titles, columns = ["algorithm"], [[_Cell(name) for name in names]]
    for column, title in zip(grid.columns, grid.titles(), strict=True):
        cells = [pairs[row, column] for row in grid.rows]
        titles.append(f"{title}\nours {unit}")
        columns.append([pair.ours for pair in cells])
        if any(pair.theirs.text != "-" for pair in cells):
            titles.append(f"{title}\npublished")
            columns.append([pair.theirs for pair in cells])
    best = frozenset(
        (r, c)
        for c, column in enumerate(columns)
        for r in _best(column, higher_is_better=higher_is_better)
    )
    rows = [[cell.text for cell in row] for row in zip(*columns, strict=True)]
    named = len(set(names)) == len(names)  # labels tell the rows apart
    settings = ["" if named else row.settings for row in grid.rows]
    table = with_settings(Table(titles, rows, captions), 1, settings)
    shift = len(table.titles) - len(titles)  # 1 where the column of settings was added
    table = table._replace(best=frozenset((r, c + shift) for r, c in best))
    return Report([table], [_value(grid, *cell, pair) for cell, pair in pairs.items()])


def _best(column: Sequence[_Cell], *, higher_is_better: bool) -> list[int]:
    """The rows of the best number and of its equals, if two or more compete.

    Those of the metric that most of the column's numbers have.
    """
    metrics = Counter(cell.metric for cell in column if cell.competes and cell.mean is not None)
    metric = next(iter(metrics.most_common(1)), ("", 0))[0]
    means = {
        r: cell.mean
        for r, cell in enumerate(column)
        if cell.competes and cell.mean is not None and cell.metric == metric
    }
    if len(means) < 2:
        return []
    top = max(means.values()) if higher_is_better else min(means.values())
    return [r for r, mean in means.items() if mean == top]


def _value(grid: Grid, row: Method, column: SetUp, pair: _Pair) -> dict[str, Value]:
    ours, theirs = pair.ours, pair.theirs
    return {
        "algorithm": row.algorithm,
        "settings": row.settings,
        **column._asdict(),
        "metric": ours.metric or theirs.metric,
        **grid.progress(row, column),
        "mean": ours.mean,
        "std": ours.std,
        "n": ours.members,
        "baseline": ours.baseline or None,
        "published_metric": theirs.metric or None,
        "published": theirs.mean,
        "published_std": theirs.std,
        "published_in": pair.source or None,
    }
