"""Compare rounds of hpcfl with a bare loop and, where it is installed, with pfl-research.

Random images in CIFAR-10's shape, one epoch of SGD, equal weights.  ``cnn`` is pfl's own benchmark:
1000 users of 50 images, 50 users in a round, batches of 10, learning rate 0.1, dropout.  All sides
run a round alternately, on one thread.  CPU time is measured, because other work on the machine
disturbs it less than wall time.  The bare loop trains hpcfl's models; pfl runs in a Python
environment of its own, with models as its users write them.
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

from common import Measurement, Result, main, parser, take_turns
from hpcfl.errors import JobError
from hpcfl.job.load import load
from round import BARE_NOTE, BareLoop, write_images
from timed_rounds import TimedRounds, build_timed_run

TURNS = 9
PRECISIONS = ("float32", "bf16")


class PeerError(JobError):
    """The peer's process ended before its rounds were measured."""


class BenchWork(NamedTuple):
    """The work of a round, the same for every side."""

    users: int
    samples: int
    """Of each user."""
    cohort: int
    batch: int
    rate: float
    """The local learning rate."""


WORKS = {
    "cnn": BenchWork(1000, 50, 50, 10, 0.1),
    "lenet": BenchWork(100, 500, 4, 64, 0.01),
    "resnet20": BenchWork(100, 500, 2, 64, 0.01),
}
INSTALL = 'python3 -m venv E && E/bin/pip install "torch==2.13.0" "pfl==0.6.0"'
PROBE = "import pfl.model.pytorch, pfl.aggregate.simulate"


def bench_peers(
    python: Path | None,
    model: str = "cnn",
    turns: int = TURNS,
    precisions: Sequence[str] = PRECISIONS,
) -> Result:
    """Measure all sides.

    Args:
        python: an interpreter that has pfl; the running one when None.
        model: a key of ``WORKS``.
        turns: the number of measured rounds of each side, after one as a warm-up.
        precisions: of ``PRECISIONS``, one or more; ratios are to pfl in the first.

    Raises:
        JobError: the interpreter has no pfl, or pfl ended.
    """
    peer, work = checked_peer(python), WORKS[model]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        write_images(root, work.users * work.samples)
        (root / "job.yaml").write_text(json.dumps(_job(name, model, work)))
        sides: dict[str, Callable[[], float]] = {}
        versions: dict[str, Any] = {}
        for precision in precisions:
            loaded = load(root / "job.yaml", [f"precision={precision}"])
            (folder := root / precision).mkdir()
            components, run, _ = build_timed_run(loaded, folder, stack)
            engine = TimedRounds(run, 1, process_time)
            bare = BareLoop(components, run, 1, process_time)
            pfl = stack.enter_context(
                pfl_process(peer, {"model": model, "precision": precision, **work._asdict()})
            )
            versions = next(pfl)
            sides |= {
                f"hpcfl, {precision}": engine,
                f"bare loop, {precision}": bare,
                f"pfl {versions['pfl']}, {precision}": lambda pfl=pfl: float(next(pfl)["cpu_s"]),  # type: ignore[misc]
            }
            if versions["parameters"] != components.model.x0.numel():
                parameters = versions["parameters"]
                raise JobError(f"{peer}: its model has {parameters} parameters, not ours")
        times = take_turns(sides, turns, "peers: rounds")
    subject = f"{model}, a round of {work.cohort} users"
    figures = [Measurement(subject, n, "CPU s", t) for n, t in times.items()]
    about = {"peer": versions, "model": model, **work._asdict()}
    return Result("peers", report(figures, work.cohort), figures, about)


def _job(root: str, model: str, work: BenchWork) -> dict[str, Any]:
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


def report(figures: Sequence[Measurement], users: int) -> str:
    """A table: medians, quartiles, and the ratio of the peer's time to ours.

    Args:
        figures: the seconds of a round, by side.
        users: the number of users in a round.
    """
    peer = next(f for f in figures if f.side.startswith("pfl"))
    ratio = f"of pfl in {peer.side.rpartition(' ')[2]}"
    lines = [f"{'':24} {'a round':>12} {'quartiles':>18} {'updates/CPU s':>14} {ratio:>18}"]
    for side in figures:
        low, high = side.quartiles
        lines.append(
            f"{side.side:24} {side.median:10.3f} s {low:8.3f} to {high:6.3f} "
            f"{users / side.median:14.2f} {peer.over(side):17.3f}x"
        )
    lines.append(BARE_NOTE)
    return "\n".join(lines)


def checked_peer(python: Path | None) -> str:
    """The path of an interpreter, after a check that it can import pfl."""
    interpreter = str(python or sys.executable)
    try:
        done = subprocess.run(  # noqa: S603
            [interpreter, "-c", PROBE], capture_output=True, text=True, check=False
        )
    except OSError as e:
        raise JobError(
            f"{interpreter}: cannot be started: {e.strerror}; name a Python that has pfl"
        ) from e
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise JobError(f"{interpreter}: no pfl ({why}); say {INSTALL}, then --python E/bin/python")
    return interpreter


@contextmanager
def pfl_process(python: str, work: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    """Start pfl's process: an iterator of its versions, then of the seconds of its rounds.

    Each item after the first lets the process run one more round.

    Raises:
        PeerError: by the iterator: the process has ended.
    """
    script = Path(__file__).with_name("peer_pfl.py")
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603
            [python, str(script), json.dumps(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        requests, answers = process.stdin, process.stdout

        def read_answers() -> Iterator[dict[str, Any]]:
            while requests and answers and (line := answers.readline()):
                yield json.loads(line)
                with suppress(BrokenPipeError):  # it has ended, so no line follows
                    requests.write("\n")
                    requests.flush()
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no output"])[-1]
            raise PeerError(f"{python}: pfl ended: {last}")

        try:
            yield read_answers()
        finally:
            process.kill()
            process.wait()
            for pipe in (requests, answers):
                if pipe:
                    with suppress(BrokenPipeError):  # of a request that was not flushed
                        pipe.close()


def command(words: Sequence[str] | None = None) -> int:
    """Run by itself."""
    made = parser("The benchmark of pfl-research, beside pfl itself.")
    made.add_argument("--model", choices=WORKS, default="cnn", help="(default: pfl's cnn)")
    made.add_argument("--python", type=Path, help="of an environment with pfl (default: ours)")
    made.add_argument("--precision", choices=PRECISIONS, help="one alone (default: both)")
    options = made.parse_args(words)
    precisions = (options.precision,) if options.precision else PRECISIONS
    return main(options, lambda o: bench_peers(o.python, o.model, precisions=precisions))


if __name__ == "__main__":
    sys.exit(command())
