"""Runs and logs as DataFrames of pandas, which is imported on use: hpcfl does not need it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.errors import JobError
from hpcfl.io.packages import refuse_shadow
from hpcfl.runs.record import read_run
from hpcfl.tools.report.choose import choose_settings
from hpcfl.tools.report.collect import collect_runs
from hpcfl.tools.report.columns import ABOUT, COSTS, score_columns
from hpcfl.tools.report.groups import ComparedRuns

if TYPE_CHECKING:
    from pandas import DataFrame


def read_log(path: Path) -> "DataFrame":
    """See ``hpcfl.read_log``.

    Raises:
        JobError: the directory holds no run, or pandas is not installed.
        StoreError: the log is damaged.
    """
    made = _data_frame("read_log", "Result.log, a list of dictionaries")
    found: DataFrame = made.from_records(list(read_run(path).log))
    return found


def read_runs(paths: Sequence[Path], *, chosen: bool) -> "DataFrame":
    """See ``hpcfl.read_runs``.

    Raises:
        JobError: there is no run in one of the directories, or pandas is not installed.
        StoreError: a file of a run is damaged.
    """
    made = _data_frame("read_runs", "hpcfl.report_runs(...).values, a list of dictionaries")
    found_runs = collect_runs(paths).runs
    if chosen:
        found_runs = choose_settings(found_runs).runs
    runs = ComparedRuns.of(found_runs).runs
    columns = [*ABOUT, *score_columns(runs), *COSTS]
    found: DataFrame = made.from_records([
        {
            **{column.key: column.value(run) for column in columns if column.key is not None},
            "directory": str(run.path),
            "ran_on": ", then ".join(run.machines) or None,
            "examples": int(run.total("examples")),
            "local_steps": int(run.total("steps")),
            **run.settings,
        }
        for run in runs
    ])  # fmt: skip
    return found


def _data_frame(function: str, instead: str) -> Any:
    """The class; pandas' own types are seen where they are installed alone."""
    refuse_shadow("pandas")
    try:
        from pandas import DataFrame
    except ImportError as e:
        raise JobError(
            f"{function}: needs the package pandas, which is not installed; say `pip install "
            f"pandas`, or take {instead}"
        ) from e
    return DataFrame
