"""Call the ``bench`` commands with their options; each module is imported when it is needed."""

from argparse import Namespace
from collections.abc import Callable, Mapping

from hpcfl.bench.result import Result


def _executor(options: Namespace) -> Result:
    from hpcfl.bench.executor import bench_executor

    return bench_executor(options.job, options.overrides, options.sizes)


def _peers(options: Namespace) -> Result:
    from hpcfl.bench.peers import PRECISIONS, TURNS, bench_peers

    precisions = (options.precision,) if options.precision else PRECISIONS
    return bench_peers(options.python, options.model, options.turns or TURNS, precisions)


def _costs(options: Namespace) -> Result | None:
    from hpcfl.bench.costs import bench_costs

    return bench_costs(options.job, options.overrides)


def _reduce(options: Namespace) -> Result | None:
    from hpcfl.bench.reduce import bench_reduce

    return bench_reduce(options.sizes, options.backend)


def _gpu(options: Namespace) -> Result:
    from hpcfl.bench.gpu import bench_gpu

    return bench_gpu(
        options.json, options.python, minutes=options.minutes, rehearse=options.rehearse
    )


def _round(options: Namespace) -> Result:
    from hpcfl.bench.round import bench_round

    return bench_round(options.job, options.overrides)


def _scaling(options: Namespace) -> Result:
    from hpcfl.bench.scaling import bench_scaling

    return bench_scaling(options.ranks)


def _store(options: Namespace) -> Result:
    from hpcfl.bench.store import bench_store

    return bench_store(options.dir, options.gib)


# A command that runs on several ranks returns None on all but the first.
BENCHES: Mapping[str, Callable[[Namespace], Result | None]] = {
    "bench executor": _executor,
    "bench peers": _peers,
    "bench costs": _costs,
    "bench gpu": _gpu,
    "bench reduce": _reduce,
    "bench round": _round,
    "bench scaling": _scaling,
    "bench store": _store,
}
