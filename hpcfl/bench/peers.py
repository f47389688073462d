"""Compare rounds of hpcfl with a bare loop and, where it is installed, with pfl-research.

Random images in CIFAR-10's shape, one epoch of SGD, users weighted alike.  ``cnn`` is pfl's own
benchmark: 1000 users of 50, 50 users a round, batches of 10, rate 0.1, dropout.  Every side takes a
round in turn, on one thread; figures are seconds of CPU, which other work on the machine disturbs
less than wall time.  The bare loop plays hpcfl's models; pfl runs in a Python of its own, with
models as its users write them.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from hpcfl.bench.interleave import take_turns
from hpcfl.bench.result import Figure, Result
from hpcfl.bench.round import Bare
from hpcfl.bench.single_rank import Engine, single_rank
from hpcfl.errors import JobError
from hpcfl.job.schema import load

TURNS = 5
PRECISIONS = ("float32", "bf16")


class Work(NamedTuple):
    """The work of every side in a round."""

    users: int
    samples: int
    """Of every user."""
    cohort: int
    batch: int
    rate: float


WORKS = {
    "cnn": Work(1000, 50, 50, 10, 0.1),
    "lenet": Work(100, 500, 4, 64, 0.01),
    "resnet20": Work(100, 500, 2, 64, 0.01),
}
INSTALL = 'python3 -m venv E && E/bin/pip install "torch==2.13.0" "pfl==0.6.0"'
PROBE = "import pfl.model.pytorch, pfl.aggregate.simulate"


def bench_peers(python: Path | None, model: str = "cnn", turns: int = TURNS) -> Result:
    """Measure all sides.

    Args:
        python: an interpreter that has pfl; this one when None.
        model: of ``WORKS``.
        turns: rounds of every side, after a warm-up.

    Raises:
        JobError: the interpreter has no pfl, or pfl ended.
    """
    peer, work = _checked(python), WORKS[model]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        _images(root, work.users * work.samples)
        (root / "job.yaml").write_text(json.dumps(_job(name, model, work)))
        sides: dict[str, Callable[[], float]] = {}
        said: dict[str, Any] = {}
        for precision in PRECISIONS:
            loaded = load(root / "job.yaml", [f"precision={precision}"])
            (folder := root / precision).mkdir()
            parts, run, _ = single_rank(loaded, folder, stack)
            engine, bare = Engine(run, 1, process_time), Bare(parts, run, 1, process_time)
            pfl = stack.enter_context(
                _pfl(peer, {"model": model, "precision": precision, **work._asdict()})
            )
            said = next(pfl)
            sides |= {
                f"hpcfl, {precision}": engine,
                f"bare loop, {precision}": bare,
                f"pfl {said['pfl']}, {precision}": lambda pfl=pfl: float(next(pfl)["cpu_s"]),  # type: ignore[misc]
            }
            if said["parameters"] != parts.x0.numel():
                raise JobError(f"{peer}: its model has {said['parameters']} parameters, not ours")
        times = take_turns(sides, turns, "bench peers: rounds")
    subject = f"{model}, a round of {work.cohort} users"
    figures = [Figure(subject, n, "CPU s", t) for n, t in times.items()]
    about = {"peer": said, "model": model, **work._asdict()}
    return Result("bench peers", report(figures, work.cohort), figures, about)


def _job(root: str, model: str, work: Work) -> dict[str, Any]:
    return {
        "task": f"cifar10-{model}",
        "data": {"root": root, "clients": work.users, "augment": False},
        "cohort": {"kind": "uniform", "size": work.cohort},
        "algorithm": {"name": "fedavg"},
        "local": {"epochs": 1, "batch_size": work.batch, "lr": work.rate},
        "weights": "uniform",
        "device": "cpu",
        "rounds": 1000,
    }


def report(figures: Sequence[Figure], users: int) -> str:
    """A table: medians, quartiles, and the ratio of the peer's time to ours.

    Args:
        figures: of a round.
        users: of a round.
    """
    lines = [
        f"{'':24} {'a round':>12} {'quartiles':>18} {'updates/CPU s':>14} {'of pfl in float32':>18}"
    ]
    peer = next(f for f in figures if f.side.startswith("pfl"))
    for found in figures:
        low, high = found.quartiles
        lines.append(
            f"{found.side:24} {found.middle:10.3f} s {low:8.3f} to {high:6.3f} "
            f"{users / found.middle:14.2f} {peer.over(found):17.3f}x"
        )
    return "\n".join(lines)


def _checked(python: Path | None) -> str:
    """An interpreter that can import pfl."""
    found = str(python or sys.executable)
    try:
        done = subprocess.run([found, "-c", PROBE], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as e:
        raise JobError(
            f"{found}: cannot be started: {e.strerror}; name a Python that has pfl"
        ) from e
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise JobError(f"{found}: no pfl ({why}); say {INSTALL}, then --python E/bin/python")
    return found


@contextmanager
def _pfl(python: str, work: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    """The lines of pfl's process: its versions, then the seconds of each round on request."""
    script = Path(__file__).with_name("peer_pfl.py")
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603
            [python, str(script), json.dumps(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        asks, answers = process.stdin, process.stdout

        def said() -> Iterator[dict[str, Any]]:
            while asks and answers and (line := answers.readline()):
                yield json.loads(line)
                with suppress(BrokenPipeError):  # it has ended: there is no answer then
                    asks.write("\n")
                    asks.flush()
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no output"])[-1]
            raise JobError(f"{python}: pfl ended: {last}")

        try:
            yield said()
        finally:
            process.kill()
            process.wait()


def _images(folder: Path, count: int) -> None:
    """Write so many random images."""
    draw = np.random.default_rng(0)
    np.savez(
        folder / "cifar10.npz",
        x_train=draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8),
        y_train=draw.integers(0, 10, count),
        x_test=draw.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8),
        y_test=np.arange(10),
    )
