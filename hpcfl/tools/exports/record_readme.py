"""The page in the record of a run: what it is, and how to run it again and compare the result."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hpcfl.runs.history import recorded_machines
from hpcfl.runs.job_file.record import CODE
from hpcfl.runs.layout import last_start
from hpcfl.start.record_inputs import named_inputs

_PAGE = """\
# {name}: the record of a run of hpcfl

`job.yaml` has all settings, `log.jsonl` a line a round, `history.jsonl` each start, with versions
and machine. `digests.json` has digests of the data, of the split into clients, of the code and of
the models. `hpcfl report {name}` prints the scores.

## Run it again

With Python {python}, the packages of `packages.txt` (`pip install -r`) and the hpcfl that it names,
in the folder that holds `{name}`:

    hpcfl run {name}{places} --out repeated
{trust}
## Compare the result

    {path}hpcfl export repeated --record repeated-record
    diff {name}/digests.json repeated-record/digests.json

No output says that data, split, code, initial model and final model are the same, bit by bit. The
run was made by {machines}. With another kind of processor or GPU, or other versions, the last
digits may differ. {ranks}
"""
_TRUST = f"""
`{CODE}/` has the source of the classes that the job names, and this command executes it: run only
what comes from people whom you trust. For `hpcfl resume repeated` set `PYTHONPATH`, as below.
"""


def readme(
    name: str,
    job: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    missing: Sequence[str],
    sources: Collection[str],
) -> bytes:
    """Write the page.

    Args:
        name: of the record's folder.
        job: the tree of its job.
        history: of the run.
        missing: lines about what is not in the record.
        sources: the files below ``code``.
    """
    start = last_start(history)
    fast = job.get("reduction") == "fast"
    page = _PAGE.format(
        name=name,
        python=start.get("python"),
        places="".join(f" {key}=PATH" for key in named_inputs(job)),
        trust=_TRUST if sources else "",
        path=f"PYTHONPATH={name}/{CODE} " if sources else "",
        machines=", then ".join(recorded_machines(history)) or "an unknown machine",
        ranks="So they may on another number of ranks (`reduction: fast`)."
        if fast
        else "The number of ranks changes nothing.",
    )
    if missing:
        page += "\n## Not in this record\n\n" + "".join(f"- {line}\n" for line in missing)
    return page.encode()
