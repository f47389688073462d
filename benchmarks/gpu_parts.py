"""The measuring parts of gpu.py, each run as a process: ``gpu_parts.py start --figures F``."""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import yaml

import hpcfl
from common import quartiles
from gpu import Figures
from gpu_jobs import IMAGES, REHEARSAL, STATES, WORKS, Subject, random_job
from hpcfl.errors import HpcflError, JobError, one_line
from hpcfl.job.load import load
from hpcfl.local.cuda_graph import capture
from hpcfl.start.environment import versions
from peers import PFL, checked_peer, peer_process
from timed_rounds import TimedRounds, build_timed_run

TURNS, WARMUP = 9, 3  # rounds: the first captures graphs and chooses kernels
EXECUTORS = ("triton", "lanes", "block", "sequential")
KERNELS, GRAPHS = 200, (1, 4, 10, 32)  # small kernels of a graph; graphs that are replayed at once
CONNECTIONS = (8, 32)  # hardware queues that streams share
PROFILED = 2  # rounds
SHOWN = 15  # kernels that take most time


class Part:
    """What a part works with.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.rehearse: bool = options.rehearse
        self.words: Sequence[str] = options.words
        self._name: str = options.name
        self._figures = Figures(options.figures)
        device = torch.device("cpu" if self.rehearse else "cuda")
        about = versions(device)
        keep = ("gpu", "processor", "python", "torch", "numpy")
        self._figures.set(self._name, machine={key: about[key] for key in keep if key in about})

    def add(self, subject: str, **numbers: Any) -> None:
        """Add numbers to the file of figures."""
        self._figures.add(self._name, subject, **numbers)

    def turns(self) -> tuple[int, int]:
        """Rounds that are timed, and those before them."""
        return (1, 1) if self.rehearse else (TURNS, WARMUP)


def start(part: Part) -> None:
    """A round of every executor, its bits twice, and the bits of lanes whatever their number."""
    model = "linear" if part.rehearse else "lenet"
    work = REHEARSAL if part.rehearse else WORKS["lenet"]._replace(samples=130)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        path = root / "job.yaml"
        job = random_job(root, Subject(model, "tf32"), work, "cuda") | {"rounds": 3}
        path.write_text(yaml.safe_dump(job))
        for executor in EXECUTORS:
            with failing(part, executor):
                began = perf_counter()
                first = hpcfl.run(path, {"executor": executor}, out=root / f"{executor}-1")
                seconds = perf_counter() - began
                again = hpcfl.run(path, {"executor": executor}, out=root / f"{executor}-2")
                part.add(executor, s=seconds, twice_the_same=torch.equal(first.x, again.x))
        subject = f"lanes, 1 and {work.cohort}"
        with failing(part, subject):
            one, all_at_once = (
                hpcfl.run(path, {"executor": "lanes", "block_size": n}, out=root / f"lanes-of-{n}")
                for n in (1, work.cohort)
            )
            part.add(subject, same=torch.equal(one.x, all_at_once.x))


def kernels(part: Part) -> None:
    """Small kernels of several graphs at once, by the number of hardware queues."""
    for queues in CONNECTIONS:
        here = [sys.executable, __file__, "queues", str(queues), *_options()]
        env = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": str(queues)}
        if code := subprocess.run(here, env=env, check=False).returncode:  # noqa: S603
            part.add(f"{queues} queues", failed=f"ended with {code}")


def queues(part: Part) -> None:
    """The same, and rounds of LeNet in lanes, with the number that the environment says."""
    (number,) = part.words
    for lanes in GRAPHS[:2] if part.rehearse else GRAPHS:
        with failing(part, f"{number} queues, {lanes} graphs"):
            replay = _graphs(lanes)
            values = [replay() for _ in range(12)][2:]
            us = 1e6 * median(values) / (KERNELS * lanes)
            part.add(f"{number} queues, {lanes} graphs", us_a_kernel=us)
    with failing(part, f"{number} queues, LeNet in lanes"):
        numbers = _round(part, Subject("lenet", "tf32"), "lanes", profile=False)
        part.add(f"{number} queues, LeNet in lanes", **numbers)


def _graphs(lanes: int) -> Callable[[], float]:
    """Replays so many graphs of dependent kernels at once, and returns the seconds."""
    made = []
    for _ in range(lanes):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        x = torch.zeros(1024, device="cuda")

        def some(x: torch.Tensor = x) -> None:
            for _ in range(KERNELS):
                x.add_(1)

        made.append((stream, capture(some, (), stream).graph))

    def replay() -> float:
        torch.cuda.synchronize()
        began = perf_counter()
        for stream, graph in made:
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        return perf_counter() - began

    return replay


def rounds(part: Part) -> None:
    """Rounds of a model in a precision by every executor, and by pfl where it is installed."""
    model, precision = part.words
    subject = Subject(model, precision)
    for executor in EXECUTORS:
        with failing(part, executor):
            part.add(executor, **_round(part, subject, executor))
    try:
        peer = checked_peer(None)
    except JobError:
        return
    if subject.model in IMAGES and not part.rehearse:
        with failing(part, "pfl"):
            about = {"model": model, "precision": precision, **WORKS[model]._asdict()}
            with peer_process(peer, PFL, about) as pfl:
                values = [1e3 * float(next(pfl)["wall_s"]) for _ in range(TURNS)][WARMUP:]
            part.add("pfl", ms=median(values), quartiles=quartiles(values))


def more(part: Part) -> None:
    """Other precisions, a method with states, and a model of one layer, without the profiler."""
    subjects = [Subject(STATES, "tf32"), Subject("linear", "tf32")]
    subjects += [
        Subject(model, precision)
        for precision in ("bf16", "float32")
        for model in ("lenet", "resnet20", "char_lstm", "cnn")
    ]
    for subject in subjects:
        for executor in EXECUTORS[:3]:
            with failing(part, f"{subject}, {executor}"):
                numbers = _round(part, subject, executor, profile=False)
                part.add(f"{subject}, {executor}", **numbers)


def _round(part: Part, subject: Subject, executor: str, *, profile: bool = True) -> dict[str, Any]:
    """What a round takes."""
    work = REHEARSAL if part.rehearse else WORKS[subject.model]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        path = root / "job.yaml"
        path.write_text(json.dumps(random_job(root, subject, work, "cuda")))
        (folder := root / "run").mkdir()
        if not part.rehearse:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        began = perf_counter()
        words = [f"executor={executor}"]
        if work.cohort == 50 and executor in ("block", "triton"):
            words.append("block_size=25")  # as a start divides 50
        side = TimedRounds(build_timed_run(load(path, words), folder, stack).run, 1)
        timed, warm = part.turns()
        for _ in range(warm):
            side()
        ready = perf_counter() - began
        values = [1e3 * side() for _ in range(timed)]
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        numbers: dict[str, Any] = {
            "ms": median(values),
            "quartiles": quartiles(values),
            "ready_s": ready,
            "phases_ms": {
                key: round(1e3 * median(line[key] for line in lines[warm:]), 3)
                for key in lines[-1]
                if key.endswith("_s")
            },
        }
        if not part.rehearse:
            numbers["peak_GB"] = torch.cuda.max_memory_allocated() / 1e9
            numbers["reserved_GB"] = torch.cuda.max_memory_reserved() / 1e9
            if profile:
                numbers |= _busy(side)
        return numbers


def _busy(side: Callable[[], float]) -> dict[str, Any]:
    """The time in which the GPU works during a round, its kernels, and which take most of it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            side()
    spans = []
    by_name: dict[str, list[float]] = {}
    for event in profiler.events() or ():
        if event.device_type.name != "CUDA":
            continue
        spans.append((event.time_range.start, event.time_range.end))
        sums = by_name.setdefault(event.name, [0.0, 0.0])
        sums[0] += 1
        sums[1] += event.time_range.end - event.time_range.start
    union, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        union += max(0.0, end - max(begin, until))
        until = max(until, end)
    most = sorted(by_name.items(), key=lambda item: -item[1][1])[:SHOWN]
    return {
        "busy_ms": union / 1e3 / PROFILED,
        "kernel_ms": sum(end - begin for begin, end in spans) / 1e3 / PROFILED,
        "kernels": len(spans) / PROFILED,
        "most": [
            [name[:110], count / PROFILED, round(us / 1e3 / PROFILED, 3)]
            for name, (count, us) in most
        ],
    }


def long(part: Part) -> None:
    """500 rounds of LeNet as CIFAR-10's jobs are: evaluations, checkpoints, augmentation."""
    count, test, number = (60, 10, 4) if part.rehearse else (50_000, 10_000, 500)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        draw = np.random.default_rng(0)
        arrays: dict[str, Any] = {}
        for kind, size in (("train", count), ("test", test)):
            arrays[f"x_{kind}"] = draw.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8)
            arrays[f"y_{kind}"] = np.arange(size) % 10
        np.savez(root / "cifar10.npz", **arrays)
        for executor in ("lanes",) if part.rehearse else ("triton", "lanes"):
            for method in ("fedavg", "fedhbm"):
                subject = f"{method}, {executor}"
                with failing(part, subject):
                    words = {
                        "data.root": str(root), "device": "cuda", "executor": executor,
                        "rounds": number, "algorithm": {"name": method},
                        "checkpoint": {"every": 100, "keep": 2},
                        "evaluate": {"every": 10, "last": 50, "batch_size": 2500},
                    }  # fmt: skip
                    if not part.rehearse:
                        words["precision"] = "tf32"
                    else:
                        words |= {"cohort": {"kind": "uniform", "size": 2}, "data.clients": 10}
                    began = perf_counter()
                    hpcfl.run(Path(hpcfl.__file__).parents[1] / "jobs/cifar10/fedavg_noniid.yaml",
                              words, out=root / subject)  # fmt: skip
                    part.add(subject, s=perf_counter() - began, **_walls(root / subject))


def _walls(run: Path) -> dict[str, Any]:
    """Of a run's rounds after the first: their sum and medians, in ms."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()][1:]
    walls = [1e3 * line["wall_s"] for line in lines]
    evaluated = [wall for wall, line in zip(walls, lines, strict=True) if "test_accuracy" in line]
    other = [wall for wall, line in zip(walls, lines, strict=True) if "test_accuracy" not in line]
    return {
        "rounds": len(walls),
        "all_ms": sum(walls),
        "ms": median(other or walls),
        "evaluated": len(evaluated),
        "evaluated_ms": median(evaluated or [0.0]),
        "phases_ms": {
            key: round(1e3 * median(line.get(key, 0.0) for line in lines), 3)
            for key in lines[0]
            if key.endswith("_s")
        },
    }


def sanitizer(part: Part) -> None:
    """One round of lanes and of Triton's kernels under compute-sanitizer."""
    if (tool := shutil.which("compute-sanitizer")) is None:
        part.add("compute-sanitizer", found="no such program here")
        return
    for executor in ("triton", "lanes"):
        here = [tool, "--tool", "memcheck", "--error-exitcode", "9", "--print-limit", "5",
                sys.executable, __file__, "once", executor, *_options()]  # fmt: skip
        began = perf_counter()
        try:
            done = subprocess.run(here, check=False, timeout=70)  # noqa: S603
            code: int | str = done.returncode
        except subprocess.TimeoutExpired:
            code = "time limit"
        part.add(executor, exit_code=code, s=perf_counter() - began)


def once(part: Part) -> None:
    """A round of few clients, for a tool that watches it."""
    (executor,) = part.words
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        work = WORKS["lenet"]._replace(users=4, samples=12, cohort=2, batch=8)
        job = random_job(root, Subject("lenet", "tf32"), work, "cuda")
        hpcfl.run(job | {"rounds": 1, "executor": executor}, out=root / "run")


def _options() -> list[str]:
    """Of this process, for another one."""
    return sys.argv[sys.argv.index("--figures") :]


@contextmanager
def failing(part: Part, subject: str) -> Iterator[None]:
    """Write down why a subject could not be measured, and go on."""
    try:
        yield
    except (HpcflError, RuntimeError, NotImplementedError) as e:
        part.add(subject, failed=one_line(str(e))[:300])


PARTS: Mapping[str, Callable[[Part], None]] = {
    function.__name__: function
    for function in (start, kernels, queues, rounds, long, more, sanitizer, once)
}


@contextmanager
def rehearsal() -> Iterator[None]:
    """A GPU that is simulated on the CPU; Triton's kernels are interpreted."""
    os.environ["TRITON_INTERPRET"] = "1"
    from tests.gpu.fake_cuda import fake_cuda

    # The simulated graphs repeat operations of torch, and an interpreted kernel is none.
    with fake_cuda(), patch("hpcfl.local.block.CudaGraphStep", lambda step: step):
        yield


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--name", required=True, help="of the part in the file of figures")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.rehearse:
            stack.enter_context(rehearsal())
        PARTS[options.part](Part(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
