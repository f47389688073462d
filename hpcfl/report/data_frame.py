"""A run's log as a DataFrame of pandas, which is imported on use: hpcfl does not need it."""

from pathlib import Path
from typing import TYPE_CHECKING

from hpcfl.errors import JobError
from hpcfl.packages import refuse_shadow
from hpcfl.run_dir.record import read_run

if TYPE_CHECKING:
    from pandas import DataFrame


def read_log(path: Path) -> "DataFrame":
    """See ``hpcfl.read_log``.

    Raises:
        JobError: the directory holds no run, or pandas is not installed.
        StoreError: the log is damaged.
    """
    refuse_shadow("pandas")
    try:
        from pandas import DataFrame
    except ImportError as e:
        raise JobError(
            "read_log: needs the package pandas, which is not installed; say `pip install pandas`, "
            "or take Result.log, a list of dictionaries"
        ) from e
    return DataFrame.from_records(list(read_run(path).log))
