"""Kill small runs repeatedly, resume them, and compare their results with undisturbed runs.

Each attempt is started by the command line.  SIGKILL ends one rank or all of them at a random
instant, or one rank exactly at a system call that changes the disk.  Or the attempt gets a signal
to stop, and must then write a checkpoint and exit without a traceback.  The next attempt resumes on
another number of ranks and with another store, and must start no earlier than at the newest
checkpoint that was ever committed.  The model, every client's state and the log of the last attempt
are compared with those of an undisturbed run.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import yaml

from hpcfl.bench.chaos.attempt_outcome import Ending, Start, run_attempt
from hpcfl.bench.chaos.kill import Kill, draw_kill, draw_stop, why_no_strace
from hpcfl.bench.chaos.run_outcome import RunBits, outcome
from hpcfl.bench.chaos.settings import JOB, KEEP, ROUNDS, draw_setting
from hpcfl.bench.chaos.summary import Summary
from hpcfl.bench.chaos.watch import PhaseDurations
from hpcfl.errors import JobError, StoreError
from hpcfl.io.progress import track
from hpcfl.run_dir.layout import RunDir
from hpcfl.sweep.process import mpirun

ALGORITHMS = ("fedhbm", "scaffold", "adabest", "localghb")
RANKS = (1, 2, 3)
KILLS = 5
"""The most kills of one run; then it runs to its end and is compared."""
ENOUGH = 4  # failed runs after which no more are started


def bench_chaos(
    kills: int, ranks: Sequence[int] | None, seed: int, root: Path, *, stops: int = 0
) -> Summary:
    """Run jobs of all algorithms in turn until enough attempts were killed or stopped.

    Args:
        kills: the number of attempts that get SIGKILL.
        ranks: numbers of ranks to change between; 1, 2 and 3 when None, or 1 without an mpirun.
        seed: of all draws; the instants of kills still depend on the machine's timing.
        root: an empty directory, or one to be created; it is removed if nothing is wrong.
        stops: the number of attempts that get a signal to stop, in between.

    Raises:
        JobError: the directory is not empty, or there is no mpirun for several ranks.
    """
    if sys.platform != "linux":
        raise JobError("bench chaos: needs Linux, whose /proc tells what a process is at")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise JobError(f"{root}: cannot be made: {e.strerror}; choose another with --dir") from e
    if any(root.iterdir()):
        raise JobError(f"{root}: is not empty; remove it, or choose another with --dir")
    sizes, notes = _sizes(ranks)
    untraced = why_no_strace(root)
    if untraced:
        notes.append(f"no kill exactly at a system call: {untraced}")
    chaos = Chaos(root, sizes, Random(seed), Summary(notes), exact=untraced is None)
    for _ in track(chaos.run(kills, stops), "kills", kills + stops):
        pass
    if not chaos.tally.wrong:
        shutil.rmtree(root)
    return chaos.tally


def _sizes(ranks: Sequence[int] | None) -> tuple[list[int], list[str]]:
    """The numbers of ranks to draw from, and notes for the user."""
    if max(ranks or RANKS) > 1:
        try:
            mpirun()
        except JobError as e:
            if ranks is not None:
                raise
            return [1], [f"on 1 rank alone: {e}"]
    return list(ranks or RANKS), []


class Chaos:
    """The runs under one directory, one after the other."""

    def __init__(
        self, root: Path, sizes: Sequence[int], draw: Random, tally: Summary, *, exact: bool
    ) -> None:
        self._root, self._sizes, self._draw, self._exact = root, sizes, draw, exact
        self.tally = tally
        self._durations = PhaseDurations()
        self._undisturbed_outcomes: dict[str, RunBits] = {}  # by algorithm
        self._stops: set[int] = set()  # which of the disturbances are signals to stop

    def run(self, kills: int, stops: int = 0) -> Iterator[None]:
        """Run until enough attempts were killed and stopped; yield after each of these."""
        left, number = kills + stops, 0
        # Few kills are spread over all algorithms.
        most = min(KILLS, -(-left // len(ALGORITHMS)))
        self._stops = set(self._draw.sample(range(left), stops))
        while left and len(self.tally.wrong) < ENOUGH:
            algorithm = ALGORITHMS[number % len(ALGORITHMS)]
            number += 1
            if algorithm not in self._undisturbed_outcomes and not self._undisturbed(algorithm):
                return
            for _ in self._disturbed(f"{number:03d}-{algorithm}", algorithm, min(left, most)):
                left -= 1
                yield

    def _undisturbed(self, algorithm: str) -> bool:
        """Run without kills, for the comparison; return whether it finished."""
        folder, job = self._new(f"000-{algorithm}", algorithm)
        start = Start(self._sizes[0], ["run", str(job), "--out", str(folder.root)], False)
        ending = run_attempt(start, None, folder, self._durations, KEEP)
        if ending.kind != "finished":
            self.tally.wrong.append(f"{folder.root}: undisturbed: {ending.name}")
            return False
        self._undisturbed_outcomes[algorithm] = result = outcome(folder)
        rounds = [entry["round"] for entry in result.log]
        if rounds != list(range(1, ROUNDS + 1)):
            self.tally.wrong.append(f"{folder.log}: undisturbed: rounds {rounds}")
        return True

    def _disturbed(self, name: str, algorithm: str, kills: int) -> Iterator[None]:
        """Run one job to its end through at most ``kills`` kills; yield after each."""
        folder, job = self._new(name, algorithm)
        resuming, before, newest = False, 0, -1
        ending = Ending("killed")
        while ending.kind != "finished":
            size = self._draw.choice([n for n in self._sizes if n != before] or self._sizes)
            setting = draw_setting(self._draw, self._root)
            resume = ["resume", str(folder.root), *setting.overrides]
            arguments = resume if resuming else ["run", str(job), "--out", str(folder.root)]
            start = Start(size, arguments, refusable=resuming and newest < 0)
            kill = self._disturbance() if kills else None
            ending = run_attempt(start, kill, folder, self._durations, KEEP)
            self.tally.count(ending)
            began = ending.seen.began
            if ending.kind == "wrong":
                self.tally.wrong.append(f"{folder.root}: {ending.name}")
                return
            if began is not None and began < newest:
                lost = f"began at round {began}, though round {newest} was committed before"
                self.tally.wrong.append(f"{folder.root}: an attempt {lost}")
                return
            if resuming and began is not None:
                self.tally.resumes[before, size] += 1
                self.tally.stores[setting.name] += 1
            before, newest = size, max(newest, ending.seen.committed)
            resuming = ending.kind != "refused" and folder.job.exists()
            if ending.kind in ("killed", "stopped"):
                kills -= 1
                yield
        self._compare(folder, algorithm)

    def _disturbance(self) -> Kill:
        """Draw how the next attempt is ended: by a signal to stop, or by kill -9."""
        before = self.tally.kills.total()
        if before in self._stops:
            return draw_stop(self._draw)
        return draw_kill(self._draw, exact=self._exact and bool(before % 2))

    def _compare(self, folder: RunDir, algorithm: str) -> None:
        """Compare the run with the undisturbed one; remove its files if both agree."""
        self.tally.runs += 1
        try:
            differing = outcome(folder).differences(self._undisturbed_outcomes[algorithm])
        except StoreError as e:
            self.tally.wrong.append(f"{folder.root}: {e}")
            return
        if differing:
            self.tally.wrong.append(f"{folder.root}: other bits: {', '.join(differing)}")
            return
        shutil.rmtree(folder.root)
        for end in ("yaml", "log", "strace"):
            folder.root.with_name(f"{folder.root.name}.{end}").unlink(missing_ok=True)

    def _new(self, name: str, algorithm: str) -> tuple[RunDir, Path]:
        """The path of a new run directory, and the file of its job."""
        job = self._root / f"{name}.yaml"
        setting = draw_setting(self._draw, self._root)
        tree = {**JOB, "algorithm": {"name": algorithm}, **setting.tree}
        job.write_text(yaml.safe_dump(tree))
        return RunDir(self._root / name), job
