"""Lay out the wall time of runs, the machine that it is of, and the hours that papers print."""

from collections.abc import Sequence

from hpcfl.job.settings import distinguishing_settings, labels
from hpcfl.report.columns import RUN_VALUES, duration, rounds_text, run_captions
from hpcfl.report.grid import SetUp
from hpcfl.report.published import Published, find, set_up
from hpcfl.report.table import Caption, Report, Table, Value, with_settings, without_blanks
from hpcfl.run_dir.record import RunRecord

METRIC = "hours"
_PUBLISHED = ("published\ntime", "published\nrounds", "published\ns a round")  # titles
_OURS = (
    "wall time: of the rounds in the log with their evaluations, over all starts of the run, on "
    "the ranks and devices of `ran on`; without the start of the program and the loading of data"
)
_EXAMPLES = "examples: in the batches of all local steps, repeats counted"
_STEPS = "local steps: of all clients"


def by_hours(runs: Sequence[RunRecord]) -> Report:
    """A row a run: rounds, examples, local steps, wall time, machine; and published hours.

    A round is what runs of different lengths have in common, so the published hours are also
    divided by the rounds that they are of.
    """
    found = [_published(run) for run in runs]
    titles = [
        *("run", "algorithm", "rounds", "examples", "local\nsteps", "wall\ntime", "s a\nround"),
        *_PUBLISHED,
        "ran on",
    ]
    rows = [
        [
            label,
            run.algorithm,
            rounds_text(run),
            _count(run.total("examples")),
            _count(_steps(run) or 0),
            duration(run.total("wall_s")),
            _seconds(_per_round(run)),
            "-" if row is None else duration(3600 * (row.value or 0)),
            _count(row.rounds if row else None),
            _seconds(_published_per_round(row)),
            ", then ".join(run.machines) or "-",
        ]
        for label, run, row in zip(labels([run.path for run in runs]), runs, found, strict=True)
    ]
    captions: list[str] = [Caption(_OURS, "wall\ntime", "s a\nround")]
    if any(run.total("examples") for run in runs):
        captions.append(Caption(_EXAMPLES, "examples"))
    if any(_steps(run) for run in runs):
        captions.append(Caption(_STEPS, "local\nsteps"))
    notes = dict.fromkeys(
        f"published: {row.paper}, {row.table}, {run.algorithm}: {row.note}"
        for run, row in zip(runs, found, strict=True)
        if row
    )
    captions += [Caption(note, *_PUBLISHED) for note in notes]
    captions += run_captions(runs)
    differing = distinguishing_settings([run.settings for run in runs], but=["rounds"])
    table = without_blanks(with_settings(Table(titles, rows, captions), 2, differing))
    settings = [run.settings for run in runs]
    values = [
        _values(run, row, settings)
        for run, row, settings in zip(runs, found, differing, strict=True)
    ]
    return Report([table._replace(settings=settings)], values, settings)


def _published(run: RunRecord) -> Published | None:
    """The printed hours of a run's set-up, of the length that is nearest to its own."""
    rows = find(run.settings, METRIC)
    return rows[0] if rows else None


def _per_round(run: RunRecord) -> float | None:
    """Seconds of wall time a round; None before the first round."""
    return run.total("wall_s") / run.done if run.done else None


def _published_per_round(row: Published | None) -> float | None:
    """Seconds a round of a published run."""
    if row is None or row.value is None or not row.rounds:
        return None
    return 3600 * row.value / row.rounds


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _count(number: float | None) -> str:
    return f"{int(number)}" if number else "-"


def _steps(run: RunRecord) -> int | None:
    """The local steps of all rounds; None where rounds of an earlier version did not log them."""
    trained = [entry for entry in run.log if "examples" in entry]
    if not trained or any("steps" not in entry for entry in trained):
        return None
    return int(run.total("steps"))


def _values(run: RunRecord, row: Published | None, settings: str) -> dict[str, Value]:
    own = set_up(run.settings)
    return {
        **{key: value(run) for key, value in RUN_VALUES},
        **{name: own[name] for name in SetUp._fields},
        "examples": int(run.total("examples")) or None,
        "local_steps": _steps(run),
        "wall_s": run.total("wall_s"),
        "wall_s_per_round": _per_round(run),
        "ran_on": ", then ".join(run.machines) or None,
        "published_hours": row.value if row else None,
        "published_rounds": row.rounds if row else None,
        "published_s_per_round": _published_per_round(row),
        "published_in": f"{row.paper}, {row.table}" if row else None,
        "published_note": row.note if row else None,
        "settings": settings,
    }
