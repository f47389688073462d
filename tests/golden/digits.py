"""The runs whose bits are recorded, and what is recorded of them.

    python -m tests.golden.digits FILE [RANKS]     record all runs of this checkout into FILE

Two recordings made on one processor, of two commits, must be equal: that is the proof that a change
of structure changed no result.  ``hashes.json`` holds those of the processors known so far.  With
ONEDNN_MAX_CPU_ISA=AVX2 and ATEN_CPU_CAPABILITY=avx2, an EPYC with AVX-512 has the bits of one with
AVX2 alone.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcfl.cli.main import main
from hpcfl.start.environment import processor
from tests.algorithms.methods import ALL
from tests.algorithms.play import local_for, model_for
from tests.parallel.harness import play_all

RECORDED = Path(__file__).with_name("hashes.json")
SCORES = ("train_loss", "test_loss", "test_accuracy")
JOB: Mapping[str, Any] = {
    "task": "digits",
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.5, "order": "clients"}, "clients": 10},
    # Partial participation, an empty round, and a client that comes again.
    "cohort": {"kind": "replay", "rounds": [[0, 3, 7], [1, 3, 8, 9], [], [2, 3, 7], [0, 4, 5, 6]]},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1, "lr_decay": 0.9, "weight_decay": 0.01},
    "rounds": 5,
    "evaluate": {"every": 1},
    "seed": 3,
}


def kind() -> str:
    """What the bits of a run depend on here: instruction set, processor, torch."""
    simd = torch.backends.cpu.get_cpu_capability()
    return f"{simd}, {processor()}, torch {torch.__version__}"


def jobs() -> dict[str, dict[str, Any]]:
    """Every algorithm with both executors."""
    found = {}
    for name, algorithm in ALL.items():
        for executor in ("sequential", "block"):
            job = {**JOB, "algorithm": dict(algorithm), "executor": executor}
            job["local"] = local_for(algorithm, JOB["local"])
            if algorithm["name"] == "fedbn":
                job["model"] = model_for(algorithm)
            if algorithm["name"] == "dpfedavg":
                job["weights"] = "uniform"
            if algorithm["name"] == "streaming_diloco":
                job["cohort"] = {"kind": "cyclic", "size": 10}
            if name == "centralized":
                job["data"] = {"clients": 1, "partition": {"kind": "iid"}}
                job["cohort"] = {"kind": "uniform", "size": 1}
            elif executor == "block":
                job["block_size"] = 2  # some cohorts do not fill their last block
            found[f"{name}-{executor}"] = job
    return found


def play(root: Path, ranks: int, every: int = 1) -> dict[str, dict[str, Any]]:
    """What each ``every``-th run leaves on so many ranks.

    Centralized training has one client, so it is played on one rank only.
    """
    possible = {n: job for n, job in jobs().items() if ranks == 1 or "centralized" not in n}
    chosen = dict(list(possible.items())[::every])
    play_all(root, chosen, ranks)
    return {name: left(root / name) for name in chosen}


def left(run: Path) -> dict[str, Any]:
    """Hashes of the model, the client states and the scores; and scores for any processor."""
    file = run / "golden.npz"
    assert main(["export", str(run), "-o", str(file), "--clients"]) == 0
    with np.load(file) as arrays:
        model = _hash([arrays["x"]])
        states = _hash(arrays[name] for name in sorted(arrays.files) if name not in ("x", "round"))
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    scores = [[line.get(score) for score in SCORES] for line in log]
    return {
        "model": model,
        "states": states,
        "scores": sha256(json.dumps(scores).encode()).hexdigest(),
        "last": dict(zip(SCORES, scores[-1], strict=True)),
    }


def _hash(arrays: Iterator[np.ndarray] | list[np.ndarray]) -> str:
    digest = sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def record(file: Path, ranks: int) -> None:
    """Add the runs of this checkout to a file, in place of those of the same processor."""
    known = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        known[kind()] = play(Path(folder), ranks)
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
