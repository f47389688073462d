"""Compare rounds of hpcfl with a bare loop and with a peer: pfl-research or FedJAX.

One epoch of SGD, equal weights.  Beside pfl, random images in CIFAR-10's shape: ``cnn`` is pfl's
own benchmark, 1000 users of 50 images, 50 users in a round, batches of 10, learning rate 0.1,
dropout.  Beside FedJAX, dense layers on random features in the shape of EMNIST.  All sides run a
round alternately, on one thread.  CPU time is measured, because other work on the machine disturbs
it less than wall time.  The bare loop trains hpcfl's models; a peer runs in a Python environment of
its own, with models as its users write them.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from common import Measurement, Result, main, parser, take_turns
from hpcfl.errors import JobError
from hpcfl.job.load import load
from round import BARE_NOTE, BareLoop, write_images
from timed_rounds import TimedRounds, build_timed_run

TURNS = 9


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
    "softmax": BenchWork(500, 100, 50, 20, 0.1),
    "mlp": BenchWork(500, 100, 50, 20, 0.1),
}
FEATURES, CLASSES = 784, 62  # of the dense models


class Peer(NamedTuple):
    """Another program."""

    name: str
    """As its versions name it."""
    script: str
    """That runs its rounds."""
    probe: str
    """Python that imports it."""
    packages: str
    """What pip installs for it."""
    precisions: Sequence[str]


PFL = Peer(
    "pfl",
    "peer_pfl.py",
    "import pfl.model.pytorch, pfl.aggregate.simulate",
    '"torch==2.13.0" "pfl==0.6.0"',
    ("float32", "bf16"),
)
FEDJAX = Peer(
    "fedjax",
    "peer_fedjax.py",
    "import fedjax",
    '"jax==0.10.2" "fedjax==0.0.17"',
    ("float32",),
)
PEERS = {"softmax": FEDJAX, "mlp": FEDJAX}  # the others: pfl


def bench_peers(
    python: Path | None,
    model: str = "cnn",
    precision: str | None = None,
    turns: int = TURNS,
) -> Result:
    """Measure all sides.

    Args:
        python: an interpreter that has the peer; the running one when None.
        model: a key of ``WORKS``.
        precision: one of the peer's, or None for all; ratios are to the peer in the first.
        turns: the number of measured rounds of each side, after one as a warm-up.

    Raises:
        JobError: the interpreter has no such peer, the peer does not compute in this precision, or
            it ended.
    """
    peer, work = PEERS.get(model, PFL), WORKS[model]
    if precision not in (None, *peer.precisions):
        raise JobError(f"--precision: found {precision}, but {model} runs in {peer.precisions[0]}")
    interpreter = checked_peer(python, peer)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        (root / "job.yaml").write_text(json.dumps(_job(root, model, work)))
        sides: dict[str, Callable[[], float]] = {}
        versions: dict[str, Any] = {}
        for used in [precision] if precision else peer.precisions:
            loaded = load(root / "job.yaml", [f"precision={used}"])
            (folder := root / used).mkdir()
            components, run, _ = build_timed_run(loaded, folder, stack)
            engine = TimedRounds(run, 1, process_time)
            bare = BareLoop(components, run, 1, process_time)
            wanted = {"model": model, "precision": used, **work._asdict()}
            rounds = stack.enter_context(peer_process(interpreter, peer, wanted))
            versions = next(rounds)
            sides |= {
                f"hpcfl, {used}": engine,
                f"bare loop, {used}": bare,
                f"{peer.name} {versions[peer.name]}, {used}": partial(_cpu_s, rounds),
            }
            if versions["parameters"] != components.model.x0.numel():
                parameters = versions["parameters"]
                raise JobError(f"{peer.name}: its model has {parameters} parameters, not ours")
        times = take_turns(sides, turns, "peers: rounds")
    subject = f"{model}, a round of {work.cohort} users"
    figures = [Measurement(subject, n, "CPU s", t) for n, t in times.items()]
    about = {"peer": versions, "model": model, **work._asdict()}
    return Result("peers", report(figures, peer.name, work.cohort), figures, about)


def _cpu_s(rounds: Iterator[dict[str, Any]]) -> float:
    return float(next(rounds)["cpu_s"])


def _job(root: Path, model: str, work: BenchWork) -> dict[str, Any]:
    """A job, whose data are written below ``root``."""
    subject: dict[str, Any]
    if PEERS.get(model, PFL) is PFL:
        write_images(root, work.users * work.samples)
        subject = {"task": f"cifar10-{model}", "data": {"root": str(root), "augment": False}}
    else:
        draw, examples = np.random.default_rng(0), work.users * work.samples
        np.savez(
            root / "random.npz",
            x=draw.standard_normal((examples, FEATURES), np.float32),
            y=draw.integers(0, CLASSES, examples),
            x_test=draw.standard_normal((CLASSES, FEATURES), np.float32),
            y_test=np.arange(CLASSES),
        )
        own = {"name": "module", "of": "dense_models.mlp"}
        subject = {
            "data": {"kind": "arrays", "path": str(root / "random.npz"), "classes": CLASSES},
            "model": own if model == "mlp" else {"name": "linear"},
        }
    subject["data"] |= {"clients": work.users, "partition": {"kind": "iid"}}
    return subject | {
        "cohort": {"kind": "uniform", "size": work.cohort},
        "algorithm": {"name": "fedavg"},
        "local": {"epochs": 1, "batch_size": work.batch, "lr": work.rate},
        "weights": "uniform",
        "device": "cpu",
        "rounds": 1000,
    }


def report(figures: Sequence[Measurement], name: str, users: int) -> str:
    """A table: medians, quartiles, and the ratio of the peer's time to ours.

    Args:
        figures: the seconds of a round, by side.
        name: of the peer.
        users: the number of users in a round.
    """
    peer = next(f for f in figures if f.side.startswith(name))
    ratio = f"of {name} in {peer.side.rpartition(' ')[2]}"
    lines = [f"{'':24} {'a round':>12} {'quartiles':>18} {'updates/CPU s':>14} {ratio:>18}"]
    for side in figures:
        low, high = side.quartiles
        lines.append(
            f"{side.side:24} {side.median:10.3f} s {low:8.3f} to {high:6.3f} "
            f"{users / side.median:14.2f} {peer.over(side):17.3f}x"
        )
    lines.append(BARE_NOTE)
    return "\n".join(lines)


def checked_peer(python: Path | None, peer: Peer = PFL) -> str:
    """The path of an interpreter, after a check that it can import the peer."""
    interpreter = str(python or sys.executable)
    try:
        done = subprocess.run(  # noqa: S603
            [interpreter, "-c", peer.probe], capture_output=True, text=True, check=False
        )
    except OSError as e:
        raise JobError(
            f"{interpreter}: cannot be started: {e.strerror}; name a Python that has {peer.name}"
        ) from e
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no output"])[-1]
        install = f"python3 -m venv E && E/bin/pip install {peer.packages}"
        raise JobError(
            f"{interpreter}: no {peer.name} ({why}); say {install}, then --python E/bin/python"
        )
    return interpreter


@contextmanager
def peer_process(
    python: str, peer: Peer, work: dict[str, Any]
) -> Iterator[Iterator[dict[str, Any]]]:
    """Start the peer's process: an iterator of its versions, then of the seconds of its rounds.

    Each item after the first lets the process run one more round.

    Raises:
        PeerError: by the iterator: the process has ended.
    """
    script = Path(__file__).with_name(peer.script)
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
            raise PeerError(f"{python}: {peer.name} ended: {last}")

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
    made = parser("The benchmarks of other programs, beside these themselves.")
    models = {
        peer: ", ".join(model for model in WORKS if PEERS.get(model, PFL) is peer)
        for peer in (PFL, FEDJAX)
    }
    beside = "; ".join(f"beside {peer.name}: {names}" for peer, names in models.items())
    made.add_argument("--model", choices=WORKS, default="cnn", help=f"{beside} (default: cnn)")
    made.add_argument("--python", type=Path, help="of an environment with the peer (default: ours)")
    made.add_argument(
        "--precision",
        choices=PFL.precisions,
        help="one alone (default: all of the peer; fedjax has float32 alone)",
    )
    options = made.parse_args(words)
    return main(options, lambda o: bench_peers(o.python, o.model, o.precision))


if __name__ == "__main__":
    sys.exit(command())
