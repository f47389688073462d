"""Runs a job on several ranks of a host: ``shared_pages.py JOB OUT``.

In its first round each rank reads all training inputs, and then, when all have, writes to
OUT-RANK.json what the system says of the memory that holds them.
"""

import json
import re
import sys
from pathlib import Path

from hpcfl.engine import loop
from hpcfl.job.load import load
from hpcfl.start import prepare, start

NAME = "/hpcfl-data-"
_HEAD = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (.+)$")


def mapping(name: str) -> dict[str, str | int]:
    """The inode and the kilobytes of the mapping whose file has this name."""
    found: dict[str, str | int] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if head := _HEAD.match(line):
            here = name in line
            if here:
                found["inode"] = head[1].split()[3]
        elif here and (size := re.match(r"(\w+): +(\d+) kB$", line)):
            found[size[1]] = int(size[2])
    return found


def main(job: str, out: Path) -> None:
    build, run_round = prepare.build_components, loop.run_round
    datasets = []

    def kept(*args, **how):
        components = build(*args, **how)
        datasets.append(components.population.dataset)
        return components

    def looked(run, server, t, asked):
        if t == 0:
            datasets[0].train.inputs.sum()
            run.comm.barrier()
            file = out.with_name(f"{out.name}-{run.comm.rank}.json")
            file.write_text(json.dumps(mapping(NAME)))
            run.comm.barrier()
        return run_round(run, server, t, asked)

    prepare.build_components, loop.run_round = kept, looked
    start.start(load(job), out)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
