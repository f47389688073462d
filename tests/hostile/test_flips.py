"""One flipped bit anywhere in a run directory: refused in a line that names the file, or no effect.

HPCFL_HOSTILE=20 plays 2 200 flips; CI plays 36, others than those.
"""

import fcntl
import io
import logging
import os
import random
import shutil
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import hpcfl
from hpcfl.engine import loop
from hpcfl.errors import HpcflError
from hpcfl.io.heartbeat import Heartbeats, RankProgress
from hpcfl.models import MODELS
from hpcfl.runs.layout import RunDir
from hpcfl.runs.manifest import committed
from hpcfl.runs.sweep_log import SweepLog
from hpcfl.start.start import start
from hpcfl.tools import report, status
from hpcfl.tools.exports.checkpoint import export
from hpcfl.tools.report.collect import collect_runs
from hpcfl.tools.selftest import outcome
from hpcfl.tools.sweep.grid import read_sweep
from hpcfl.tools.sweep.pending import pending_runs
from hpcfl.tools.sweep.run_sweep import prepare
from tests.long_form import LONG, TIMES

pytestmark = pytest.mark.slow

FIGURES = logging.getLogger("flips")  # pytest --log-cli-level=info shows them
NOW = 4e9  # seconds since the epoch, whenever a command asks
ROUNDS = 4


def job(root, **changes):
    """A small job on arrays of its own, as a mapping."""
    draw = np.random.default_rng(0)
    y = np.arange(40) % 4
    x = draw.standard_normal((40, 3)) + y[:, None]
    np.savez(root / "data.npz", x=x, y=y, x_test=x[:12], y_test=y[:12])
    return {
        "data": {"kind": "arrays", "path": str(root / "data.npz"), "clients": 4},
        "model": {"name": "linear"},
        "cohort": {"kind": "uniform", "size": 2},
        "algorithm": {"name": "fedhbm", "first": "shared"},
        "local": {"steps": 1, "batch_size": 4, "lr": 0.1},
        "rounds": ROUNDS,
        "evaluate": {"every": 1, "best": True},
        "checkpoint": {"every": 2},
        **changes,
    }


def finished(root):
    """Its clients begin with the initial model; it keeps its best model."""
    hpcfl.run(job(root), out=root / "run")


def stopped(root):
    """Killed in the middle of a round and of a line of its log; its states share a part."""
    tree = job(root, algorithm={"name": "localghb"}, checkpoint={"every": 1, "keep": 9})
    run_round = loop.run_round

    def killed(run, server, round, *more):
        if round == ROUNDS - 1:
            raise KeyboardInterrupt
        return run_round(run, server, round, *more)

    loop.run_round = killed
    try:
        with pytest.raises(KeyboardInterrupt):
            hpcfl.run(tree, out=root / "run")
    finally:
        loop.run_round = run_round
    folder = RunDir(root / "run")
    # As where the kill came before it was committed.
    shutil.rmtree(folder.checkpoints / f"{ROUNDS - 1:08d}", ignore_errors=True)
    with folder.log.open("ab") as log:
        log.write(b'{"round": 4, "clients": 2, "train_')
    for rank in (0, 1):
        (folder.ranks / "0123abcd").mkdir(parents=True, exist_ok=True)
        Heartbeats(folder.ranks, "0123abcd", rank).open(RankProgress(4, "training", 9))


def frozen(root):
    """A model with statistics that no round changes."""
    torch.manual_seed(4)
    weights = MODELS["mobilenet_v2"](norm="frozen", init="x").build((3, 8, 8), 4).state_dict()
    save_file(weights, root / "weights.safetensors")
    tree = job(
        root,
        model={"name": "mobilenet_v2", "norm": "frozen", "init": str(root / "weights.safetensors")},
        algorithm={"name": "fedavg"},
    )
    images = np.random.default_rng(0).standard_normal((8, 3, 8, 8))
    y = np.arange(8) % 4
    np.savez(root / "data.npz", x=images, y=y, x_test=images, y_test=y)
    hpcfl.run(tree, out=root / "run")


def sweep(root):
    """Two runs that are finished, one that failed before it began, and one not started."""
    (root / "job.yaml").write_text(yaml.safe_dump(job(root, rounds=2)))
    (root / "sweep.yaml").write_text("job: job.yaml\ngrid: {seed: [0, 1, 2, 3]}\n")
    with RunDir(root / "run") as folder:
        todos = prepare(read_sweep(root / "sweep.yaml"), folder)
        log = SweepLog(folder.root, io.StringIO())
        log.write("plan", "sweep", "4 runs to do, 0 finished before, 1 at once: as asked")
        for each in todos[:2]:
            start(each.point.loaded, each.folder.root)
            log.write("finished", each.point.name, "2 rounds")
        log.write("failed", todos[2].point.name, "exit code 3: the loss is nan")


class Subject:
    """A folder to damage, and what every command says of it as it is."""

    def __init__(self, kind, root):
        kind(root)
        self.kind, self.root, self.place = kind.__name__, root / "run", root
        self.files = [
            path
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
            and path.stat().st_size
            and "events" not in path.parts
            # The sweep writes the job of a run anew when it starts it.
            and not (path.parent == self.root and path.suffix == ".yaml" and kind is sweep)
        ]
        self.commands = [self.status, self.report]
        if kind is sweep:
            self.commands += [self.todo]
        else:
            self.commands += [self.export, self.export_older, self.resume, self.resume_unverified]
        if kind is finished:
            self.commands += [self.export_best]
        if kind is frozen:
            self.commands += [self.export_state_dict]
        self.whole = {command: command() for command in self.commands}

    def _live(self):
        """The lock is held where the run has ranks that beat."""
        held = ExitStack()
        if self.kind == "stopped":
            lock = held.enter_context((self.root / "lock").open("rb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        return held

    def status(self):
        with self._live():
            return status.status(self.root)

    def report(self):
        with self._live():
            standing = collect_runs([self.root])
        return report.plain(report.by_run(standing.runs, None)), *standing.notes

    def todo(self):
        todos = pending_runs(read_sweep(self.place / "sweep.yaml"), self.root)
        return [(each.point.name, each.action, each.done) for each in todos]

    def export(self):
        return self._exported(clients=True)

    def export_older(self):
        return self._exported(clients=True, round=2)

    def export_best(self):
        return self._exported(best=True)

    def _exported(self, *, clients=False, round=None, best=False):
        target = self.place / "x.npz"
        export(self.root, round=round, npz=target, state_dict=None, clients=clients, best=best)
        return target.read_bytes()

    def export_state_dict(self):
        target = self.place / "x.safetensors"
        export(self.root, round=None, npz=None, state_dict=target, clients=False)
        return {name: value.numpy().tobytes() for name, value in load_file(target).items()}

    def resume(self, *, verify=True):
        copy = self.place / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.root, copy)
        hpcfl.resume(copy, [f"rounds={ROUNDS + 1}"], verify=verify)
        left = outcome(RunDir(copy))
        best = committed(copy / "checkpoints")[-1].folder / "best.safetensors"
        arrays = {name: value.tobytes() for name, value in left.arrays.items()}
        return arrays, left.log, best.read_bytes() if best.exists() else None

    def resume_unverified(self):
        return self.resume(verify=False)

    def play(self, draw):
        """Flip one bit, and ask every command; how many refused, and how many told the same."""
        path = draw.choice(self.files)
        content, before = path.read_bytes(), path.stat()
        at = draw.choice([draw.randrange(len(content))] * 7 + [len(content) - 1])
        bit = draw.randrange(8)
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        where = f"{path.relative_to(self.root)}: bit {bit} of byte {at}"
        left_out = draw.choice((self.resume, self.resume_unverified))
        asked = [command for command in self.commands if command != left_out]
        ends = Counter(self._end(command, path, where) for command in asked)
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return "refused" if ends["refused"] else "unchanged"

    def _end(self, command, path, where):
        try:
            found = command()
        except HpcflError as error:
            line = str(error)
            assert path.name in line, (where, command.__name__, line)
            assert line.isprintable()
            assert error.exit_code == 2 or "resume" in command.__name__, (where, line)
            return "refused"
        if found == self.whole[command]:
            return "unchanged"
        if command == self.report and found[0] == self.whole[command][0]:
            # The numbers stand; a line says which history cannot be read.
            new = set(found[1:]) - set(self.whole[command][1:])
            assert new and all(path.name in line for line in new), (where, new)
            return "refused"
        assert self.kind == "sweep", (where, command.__name__)  # the other runs are told
        self._compare_lines(command, found, path, where)
        return "refused"

    def _compare_lines(self, command, found, path, where):
        """One run of several is said to be damaged, the others as before."""
        name = path.relative_to(self.root).parts[0]
        lines = found.splitlines()
        (said,) = [line for line in lines if "damaged" in line.split()[:2]]
        assert name in said, (where, said)
        assert path.name in said, (where, said)
        others = {line for line in self.whole[command].splitlines() if name not in line}
        counts = [line for line in others - set(lines) if not line[:1].isspace()]
        assert len(counts) <= 1, (where, counts)


@pytest.fixture
def fixed(monkeypatch):
    """The clock stands still for the commands that show an age."""
    clock = SimpleNamespace(time=lambda: NOW, monotonic=lambda: 0.0)
    monkeypatch.setattr(status, "time", clock)
    deterministic = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(deterministic)


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize(
    ("kind", "flips"), [(finished, 40), (stopped, 30), (frozen, 10), (sweep, 30)]
)
def test_one_flipped_bit(kind, flips, tmp_path):
    subject = Subject(kind, tmp_path)
    draw = random.Random(f"{kind.__name__} {TIMES}")
    count = flips * TIMES if LONG else flips // 3
    ends = Counter(subject.play(draw) for _ in range(count))
    FIGURES.info("%s: %d files, %s", kind.__name__, len(subject.files), dict(ends))
    assert ends["refused"] > count // 4  # or the files that were hit are read by nobody
