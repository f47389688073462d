"""Measure rounds on a GPU: models, precisions and executors beside a bare loop and pfl.

Each subject is a model in a precision; its sides run a round in turn.  The data are random, in the
shapes of CIFAR-10, Shakespeare and a table, so that nothing needs to be fetched.  A GPU may be lent
for minutes only: after each subject the figures are written, and a later call measures those that
are missing.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from common import Measurement, Result, main, parser, take_turns
from hpcfl.data.sources.shakespeare import ALPHABET, WINDOW
from hpcfl.errors import HpcflError, JobError, one_line
from hpcfl.io.files import parse_json, read_bytes
from hpcfl.io.progress import track
from hpcfl.job.schema import load
from hpcfl.local.cuda_graph import capture
from hpcfl.plan.timed_rounds import TimedRounds, build_timed_run
from peers import BenchWork, PeerError, checked_peer, pfl_process
from round import BARE_NOTE, BareLoop, write_images

TURNS, WARMUP = 7, 2  # the first turn captures the graph and chooses kernels
MINUTES = 8.0
PRECISIONS = {"cuda": ("tf32", "bf16", "float32"), "cpu": ("float32", "bf16")}
STATES = "lenet_fedhbm"  # clients keep states, as they do not in the rounds of lenet
WORKS = {
    "cnn": BenchWork(1000, 50, 50, 10, 0.1),  # pfl's own benchmark
    "lenet": BenchWork(100, 500, 10, 64, 0.01),
    "resnet20": BenchWork(100, 500, 10, 64, 0.01),
    "char_lstm": BenchWork(100, 500, 10, 100, 1.0),
    "linear": BenchWork(1000, 20, 50, 10, 0.1),
    STATES: BenchWork(100, 500, 10, 64, 0.01),
}
REHEARSAL = BenchWork(3, 2, 2, 2, 0.01)
IMAGES = ("cnn", "lenet", "resnet20")  # which pfl runs, too
KERNELS, LANES = 200, (1, 4, 10, 32)  # small kernels of a graph; graphs that are replayed at once
_OWN = ("date", "cores", "threads")  # may differ between the calls that measure one file


class Subject(NamedTuple):
    """A model in a precision."""

    model: str
    precision: str

    def __str__(self) -> str:
        return f"{self.model}, {self.precision}"


class Figures:
    """The figures so far, and the subjects that failed, in a file from which a call continues.

    A subject of which an executor or the peer failed has the figures of the other sides, and is
    among those that failed.

    Args:
        path: the file, which may exist; None: nothing is kept.
        rehearsal: whether tiny jobs are run on the CPU.
        device: that is measured.

    Raises:
        JobError: the file has figures of another machine, other versions or other works.
    """

    def __init__(self, path: Path | None, *, rehearsal: bool, device: torch.device) -> None:
        self._path, self._rehearsal, self._device = path, rehearsal, device
        self.measured: list[Measurement] = []
        self.failed: dict[str, str] = {}
        """Messages by subject."""
        if path is not None and path.exists():
            self._read(path)

    def result(self) -> Result:
        """The figures and a table of them."""
        about = {"rehearsal": self._rehearsal, "failed": self.failed}
        return Result("gpu", report(self.measured), self.measured, about, self._device, self.failed)

    def add(self, subject: Subject, figures: Sequence[Measurement], failure: str = "") -> None:
        """Add the figures of a subject in place of older ones, and write all.

        Args:
            subject: which one.
            figures: none where it failed.
            failure: why it failed, or one of its sides.
        """
        name = str(subject)
        if figures:
            self.measured = [figure for figure in self.measured if figure.subject != name]
            self.measured += figures
        self.failed.pop(name, None)
        if failure:
            self.failed[name] = failure
        self._write()

    def missing(self, subjects: Sequence[Subject]) -> list[Subject]:
        """The subjects that are not wholly measured, those that failed before at the end."""
        done = {figure.subject for figure in self.measured} - self.failed.keys()
        left = [subject for subject in subjects if str(subject) not in done]
        return sorted(left, key=lambda subject: str(subject) in self.failed)

    def _write(self) -> None:
        if self._path is not None:
            self.result().write(self._path)

    def _read(self, path: Path) -> None:
        advice = "name another file with --json, or remove it"
        try:
            tree = parse_json(read_bytes(path, advice))
            before = {**tree["machine"], "rehearsal": tree["about"]["rehearsal"]}
            self.failed = {**tree["about"]["failed"]}
            self.measured = [_read_figure(figure) for figure in tree["figures"]]
            report(self.measured)  # sides of one subject with as many turns
        except (ArithmeticError, LookupError, TypeError, ValueError) as e:
            raise JobError(f"{path}: found no figures of gpu.py ({e!r}); {advice}") from e
        now = {**self.result().machine(), "rehearsal": self._rehearsal}
        for key, value in now.items():
            if key not in _OWN and before.get(key) != value:
                raise JobError(
                    f"{path}: its {key} is {before.get(key)}, now it is {value}: figures of "
                    f"different work are not collected; {advice}"
                )


def _read_figure(tree: Mapping[str, Any]) -> Measurement:
    """A figure of a file.

    Raises:
        LookupError, TypeError, ValueError: it is none.
    """
    figure = Measurement(*(tree[key] for key in Measurement._fields))
    texts = all(isinstance(text, str) for text in figure[:3])
    if not (
        texts and figure.values and all(type(value) in (int, float) for value in figure.values)
    ):
        raise ValueError(f"no figure: {tree}")
    return figure


def bench_gpu(
    path: Path | None, python: Path | None, *, minutes: float = MINUTES, rehearse: bool = False
) -> Result:
    """Measure the subjects that the file lacks, for about so many minutes.

    Args:
        path: a file of figures to continue and to write.
        python: an interpreter that has pfl; the running one when None, if it has it.
        minutes: after the first subject, none is begun that would probably end later.
        rehearse: run tiny jobs on the CPU.

    Raises:
        JobError: there is no GPU; or the file or the interpreter does not fit.
    """
    if not rehearse and not torch.cuda.is_available():
        raise JobError("gpu: found no GPU; --rehearse runs tiny jobs on the CPU")
    began, longest = monotonic(), 0.0
    device = torch.device("cpu") if rehearse else torch.device("cuda", 0)
    figures = Figures(path, rehearsal=rehearse, device=device)
    # What decides most comes first: how well small kernels of several clients overlap, and tf32.
    kernels = [Subject("kernels", "float32")] if device.type == "cuda" else []
    subjects = kernels + [
        Subject(model, precision) for precision in PRECISIONS[device.type] for model in WORKS
    ]
    peer = _peer(python)
    left = figures.missing(subjects)
    for subject in track(left, "gpu: subjects", len(left), thread=False):
        started = monotonic()
        if longest and started - began + longest > 60 * minutes:
            break
        try:
            if subject in kernels:
                figures.add(subject, _measure_kernels(subject))
                continue
            work = REHEARSAL if rehearse else WORKS[subject.model]
            figures.add(subject, *_measure_all(subject, work, device.type, peer))
        except (HpcflError, torch.OutOfMemoryError) as e:
            figures.add(subject, [], one_line(str(e)))
        except RuntimeError as e:  # after an error of a kernel this process cannot use the GPU
            figures.add(subject, [], one_line(str(e)))
            break
        longest = max(longest, monotonic() - started)
    result = figures.result()
    table = "\n".join([result.table, *_state(figures, subjects, path)])
    return replace(result, table=table, device=device)


def _state(figures: Figures, subjects: Sequence[Subject], path: Path | None) -> Iterator[str]:
    """Lines: the subjects that failed, and how many are measured."""
    yield ""
    for subject, message in figures.failed.items():
        yield f"{subject}: failed: {message}"
    left = len(figures.missing(subjects))
    more = "; the same command continues" if left and path is not None else ""
    yield f"{len(subjects) - left} of {len(subjects)} subjects measured{more}"


def _peer(python: Path | None) -> str | None:
    """The interpreter that has pfl; None where none is named and this one has not."""
    try:
        return checked_peer(python)
    except JobError:
        if python is not None:
            raise
        return None


def _measure_all(
    subject: Subject, work: BenchWork, device: str, peer: str | None
) -> tuple[list[Measurement], str]:
    """The seconds of a round of every side; without those that fail, and why they did."""
    try:
        return _measure(subject, work, device, peer)
    except PeerError as e:
        failure = one_line(str(e))
    # Here the error no longer keeps the first measurement's memory of the GPU.
    figures, others = _measure(subject, work, device, None)
    return figures, "; ".join(filter(None, (failure, others)))


def _measure(
    subject: Subject, work: BenchWork, device: str, peer: str | None
) -> tuple[list[Measurement], str]:
    """The same, of a peer that does not fail."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        path = root / "job.yaml"
        path.write_text(json.dumps(random_job(root, subject, work, device)))
        sides: dict[str, Callable[[], float]] = {}
        failures = []
        only_gpu = ("triton", "lanes") if device == "cuda" else ()
        for executor in ("sequential", "block", *only_gpu):
            (folder := root / executor).mkdir()
            try:
                built = build_timed_run(load(path, [f"executor={executor}"]), folder, stack)
            except JobError as e:  # it cannot train this model, or lacks a package
                if executor == "sequential":
                    raise
                failures.append(one_line(str(e)))
                continue
            sides[executor] = TimedRounds(built.run, 1)
            if executor == "sequential":
                sides["bare loop"] = BareLoop(built.components, built.run, 1)
        if peer is not None and subject.model in IMAGES:
            about = {"model": subject.model, "precision": subject.precision, **work._asdict()}
            pfl = stack.enter_context(pfl_process(peer, about))
            sides[f"pfl {next(pfl)['pfl']}"] = lambda: float(next(pfl)["wall_s"])
        times = take_turns(sides, TURNS, f"gpu: {subject}: rounds", warmup=WARMUP)
    figures = [Measurement(str(subject), side, "s", seconds) for side, seconds in times.items()]
    return figures, "; ".join(failures)


def _measure_kernels(subject: Subject) -> list[Measurement]:
    """The seconds of graphs of ``KERNELS`` dependent small kernels, each on a stream of its own."""
    sides = {f"{lanes} graphs": _graphs(lanes) for lanes in LANES}
    times = take_turns(sides, TURNS, "gpu: kernels", warmup=WARMUP)
    return [Measurement(str(subject), side, "s", seconds) for side, seconds in times.items()]


def _graphs(lanes: int) -> Callable[[], float]:
    """Replays so many graphs at once, and returns the seconds."""
    made = []
    for _ in range(lanes):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        x = torch.zeros(1024, device="cuda")

        def kernels(x: torch.Tensor = x) -> None:
            for _ in range(KERNELS):
                x.add_(1)

        made.append((stream, capture(kernels, (), stream).graph))

    def replay() -> float:
        torch.cuda.synchronize()
        began = perf_counter()
        for stream, graph in made:
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        return perf_counter() - began

    return replay


def random_job(root: Path, subject: Subject, work: BenchWork, device: str) -> dict[str, Any]:
    """A job of random examples, which this writes."""
    count = work.users * work.samples
    common = {
        "cohort": {"kind": "uniform", "size": work.cohort},
        "algorithm": {"name": "fedhbm" if subject.model == STATES else "fedavg"},
        "local": {"epochs": 1, "batch_size": work.batch, "lr": work.rate},
        "weights": "uniform",
        "device": device,
        "precision": subject.precision,
        "rounds": 1000,
    }
    if subject.model in (*IMAGES, STATES):
        write_images(root, count)
        data = {"root": str(root), "clients": work.users, "augment": False}
        return {"task": f"cifar10-{subject.model.removesuffix('_fedhbm')}", "data": data, **common}
    if subject.model == "char_lstm":
        _write_texts(root, work)
        data = {"kind": "leaf", "examples": "text", "root": str(root)}
    else:
        draw = np.random.default_rng(0)
        x, number = draw.standard_normal((count, 64), np.float32), np.arange(count)
        np.savez(root / "table.npz", x=x, y=number % 10, client=number % work.users)
        data = {"kind": "arrays", "path": str(root / "table.npz")}
    return {"data": data, "model": {"name": subject.model}, **common}


def _write_texts(root: Path, work: BenchWork) -> None:
    """Write random texts in LEAF's layout: windows of 80 characters, and the next ones."""
    draw, letters = np.random.default_rng(0), np.array(list(ALPHABET))
    for part, users, samples in (("train", work.users, work.samples), ("test", 1, 1)):
        texts: Mapping[str, Any] = {
            f"u{user:04d}": {
                "x": ["".join(row) for row in letters[draw.integers(80, size=(samples, WINDOW))]],
                "y": letters[draw.integers(80, size=samples)].tolist(),
            }
            for user in range(users)
        }
        content = {"users": list(texts), "num_samples": [samples] * users, "user_data": texts}
        (root / part).mkdir()
        (root / part / "texts.json").write_text(json.dumps(content))


def report(figures: Sequence[Measurement]) -> str:
    """A table: medians, quartiles, and the other sides' time to the bare loop's and pfl's."""
    lines = [
        f"{'':20} {'':12} {'a round':>11} {'quartiles':>20} {'of bare loop':>13} {'of pfl':>7}"
    ]
    subject = ""
    for figure in figures:
        low, high = figure.quartiles
        same = [other for other in figures if other.subject == figure.subject]
        ratios = [
            next(
                (f"{figure.over(other):.3f}" for other in same if other.side.startswith(name)), "-"
            )
            for name in ("bare loop", "pfl")
        ]
        name = "" if figure.subject == subject else figure.subject
        subject = figure.subject
        lines.append(
            f"{name:20} {figure.side:12} {1e3 * figure.median:8.2f} ms "
            f"{1e3 * low:8.2f} to {1e3 * high:8.2f} {ratios[0]:>13} {ratios[1]:>7}"
        )
    lines.append(BARE_NOTE)
    return "\n".join(lines)


def command(words: Sequence[str] | None = None) -> int:
    """Run by itself."""
    made = parser("Rounds on a GPU: models, precisions, executors, a bare loop, pfl.")
    made.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        metavar="M",
        help="end after about so many (default 8); with --json F, the next call continues",
    )
    made.add_argument("--rehearse", action="store_true", help="tiny works on the CPU")
    made.add_argument("--python", type=Path, help="of an environment with pfl (default: ours)")
    options = made.parse_args(words)
    return main(
        options, lambda o: bench_gpu(o.json, o.python, minutes=o.minutes, rehearse=o.rehearse)
    )


if __name__ == "__main__":
    sys.exit(command())
