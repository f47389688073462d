"""Test and measure on a GPU that may be lent for minutes: "make gpu" calls this.

The work is in parts (``gpu_parts.py``, and tests), what decides most first.  Each is a process with
a time limit of its own: one that fails, hangs or breaks the GPU stops none of the next.  Figures
are written as soon as they are there, into ``figures.json``; what the parts print is in
``log.txt``.  A later call of the same commit goes on with the parts that had not their time.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LEAST_S = 30  # with less time left no part is begun
NOT_YET, TIMED_OUT = "not yet", "by its time limit"


class Part(NamedTuple):
    """One part of the work."""

    seconds: float
    """Its time limit."""
    words: Sequence[str]
    """For Python; a name alone is a function of ``gpu_parts.py``."""


def _tests(*words: str) -> Sequence[str]:
    options = "-m pytest -v -p no:cacheprovider -p no:benchmark --durations=10"
    return [*options.split(), *words]


CHOSEN = (  # of the tests of a GPU, which together take longer than a GPU may be lent
    "twice_and_the_cpus or change_no_bit or augmented or nccl_on_one or trains_the_model or float16"
    " or (triton and (two_ranks or images)) or (lanes and (tf32 or char_lstm or cnn))"
    " or frozen-bf16 or (fedhbm-float32 and lanes) or (feddyn-bf16 and block)"
)
PARTS = {
    "start": Part(90, ["start"]),
    "kernels": Part(90, ["kernels"]),
    "lenet": Part(110, ["rounds", "lenet", "tf32"]),
    "resnet20": Part(130, ["rounds", "resnet20", "tf32"]),
    "char_lstm": Part(110, ["rounds", "char_lstm", "tf32"]),
    "cnn": Part(110, ["rounds", "cnn", "tf32"]),
    "long": Part(150, ["long"]),
    "layers": Part(240, _tests("tests/triton_kernels/test_kernels.py",
                               "tests/triton_kernels/test_layers.py", "-n", "4")),
    "nccl": Part(240, _tests("tests/gpu/test_two_nccl_ranks.py")),
    "tests": Part(300, _tests("tests/gpu/test_cuda.py", "-n", "4", "-k", CHOSEN)),
    "more": Part(200, ["more"]),
    "sanitizer": Part(150, ["sanitizer"]),
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="default runs/gpu, runs/gpu-rehearsal"
    )
    parser.add_argument(
        "--minutes", type=float, default=25, metavar="M", help="end by then (default 25)"
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny works on the CPU")
    options = parser.parse_args(words)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"found {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    end = monotonic() + 60 * options.minutes
    default = ROOT / ("runs/gpu-rehearsal" if options.rehearse else "runs/gpu")
    results = (options.results or default).resolve()  # parts run in the checkout
    results.mkdir(parents=True, exist_ok=True)
    figures, commit = Figures(results / "figures.json"), _commit()
    for name in options.parts or [part for part in PARTS if not figures.has(part, commit)]:
        left = end - monotonic()
        if left < LEAST_S:
            break
        figures.begin(name, commit, min(PARTS[name].seconds, left))
        run_part(name, min(PARTS[name].seconds, left), results, rehearse=options.rehearse)
    print(figures.table(), flush=True)
    return int(figures.failed())


def _commit() -> str:
    """The state of the checkout; "none" without git."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        return "none"
    return done.stdout.strip() or "none"


def run_part(name: str, seconds: float, results: Path, *, rehearse: bool) -> None:
    """Run a part for at most so long; how it ended is among the figures."""
    words = list(PARTS[name].words)
    if words[0] != "-m":
        words = [str(HERE / "gpu_parts.py"), *words, "--figures", str(results / "figures.json")]
        words += ["--name", name, *["--rehearse"] * rehearse]
    figures = Figures(results / "figures.json")
    print(f"== {name}, at most {seconds:.0f} s", flush=True)
    path = os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])
    began = monotonic()
    with (results / "log.txt").open("ab") as log:
        log.write(f"\n== {name}\n".encode())
        log.flush()
        process = subprocess.Popen(  # noqa: S603 - a part of PARTS
            [sys.executable, *words],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            code = process.wait(seconds)
            ended = "well" if code == 0 else f"with {code}"
        except subprocess.TimeoutExpired:
            ended = TIMED_OUT
        finally:
            with suppress(ProcessLookupError):  # if all have ended, its ranks and workers, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    figures.set(name, ended=ended, seconds=round(monotonic() - began, 1))
    print(f"   ended {ended}", flush=True)


class Figures:
    """The file of figures: by part how it ended, and by subject a dictionary of numbers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Any]:
        """All so far, by part."""
        if not self._path.exists():
            return {}
        tree: dict[str, Any] = json.loads(self._path.read_text())
        return tree

    def has(self, name: str, commit: str) -> bool:
        """Whether a part of this commit ended by itself, or had all of its time."""
        part = self.read().get(name, {})
        if not part or part["commit"] != commit or part["ended"] == NOT_YET:
            return False
        return part["ended"] != TIMED_OUT or bool(part["limit_s"] >= PARTS[name].seconds)

    def failed(self) -> bool:
        """Whether a part did not end well, or a subject of one failed."""
        parts = self.read().values()
        subjects = [one for part in parts for one in part.get("found", {}).values()]
        return any(part["ended"] != "well" for part in parts) or any(
            "failed" in one for one in subjects
        )

    def begin(self, name: str, commit: str, limit_s: float) -> None:
        """Forget what an earlier call found in a part."""
        part = {"ended": NOT_YET, "commit": commit, "limit_s": limit_s}
        self._write({**self.read(), name: part})

    def set(self, name: str, **about: Any) -> None:
        """Set values of a part."""
        tree = self.read()
        self._write({**tree, name: {**tree.get(name, {}), **about}})

    def add(self, name: str, subject: str, **numbers: Any) -> None:
        """Add what was found of a subject."""
        found = self.read().get(name, {}).get("found", {})
        self.set(name, found={**found, subject: {**found.get(subject, {}), **numbers}})
        print(f"{subject}: {numbers}", flush=True)

    def _write(self, tree: dict[str, Any]) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(tree, indent=1) + "\n")
        new.replace(self._path)

    def table(self) -> str:
        """Short lines: how each part ended, and the numbers of its subjects but for long texts."""
        lines = []
        for name, part in self.read().items():
            machine = " ".join(map(str, part.get("machine", {}).values()))
            lines.append(f"{name}: ended {part['ended']}, {part.get('seconds', '?')} s  {machine}")
            for subject, found in part.get("found", {}).items():
                words = [
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                    for key, value in found.items()
                    if not isinstance(value, list | dict)
                ]
                lines.append(f"  {subject}: {', '.join(words)}"[:240])
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
