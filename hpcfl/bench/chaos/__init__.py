"""Kill small runs again and again, resume them, and compare their end with undisturbed runs.

The command line starts every attempt of a run, and SIGKILL ends it: of one rank or all, at a random
instant, or of one rank exactly at a system call that changes the disk.  Or a signal asks it to
stop, and it must do so with a checkpoint and without a traceback.  The next attempt resumes, on
another number of ranks and with another store, and must begin no earlier than at the newest
checkpoint that was ever seen.  The end of the last attempt is compared with an undisturbed run: the
model, every client's state, the log.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import yaml

from hpcfl.bench.chaos.attempt_outcome import Ending, Start, play
from hpcfl.bench.chaos.kill import Kill, draw_kill, draw_stop, no_tracer
from hpcfl.bench.chaos.run_outcome import Outcome, outcome
from hpcfl.bench.chaos.settings import JOB, KEEP, ROUNDS, draw_setting
from hpcfl.bench.chaos.summary import Tally
from hpcfl.bench.chaos.watch import Pace
from hpcfl.errors import JobError, StoreError
from hpcfl.io.progress import track
from hpcfl.run_dir.layout import RunDir
from hpcfl.sweep.process import mpirun

ALGORITHMS = ("fedhbm", "scaffold", "adabest", "localghb")
RANKS = (1, 2, 3)
KILLS = 5
"""Of one run at most; then it runs to its end and is compared."""
ENOUGH = 4  # failed runs after which no more are started


def bench_chaos(
    kills: int, ranks: Sequence[int] | None, seed: int, root: Path, *, stops: int = 0
) -> Tally:
    """Run jobs, one algorithm after the other, until enough attempts were killed or stopped.

    Args:
        kills: how many get kill -9.
        ranks: numbers of ranks to change between; 1, 2 and 3 when None, or 1 without an mpirun.
        seed: of what is drawn; instants come as they come.
        root: a directory that is made, or empty; it is removed if nothing is wrong.
        stops: how many get a signal to stop, among the others.

    Raises:
        JobError: the directory holds something, or there is no mpirun for the ranks asked for.
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
    untraced = no_tracer(root)
    if untraced:
        notes.append(f"no kill exactly at a system call: {untraced}")
    chaos = Chaos(root, sizes, Random(seed), Tally(notes), exact=untraced is None)
    for _ in track(chaos.play(kills, stops), "kills", kills + stops):
        pass
    if not chaos.tally.wrong:
        shutil.rmtree(root)
    return chaos.tally


def _sizes(ranks: Sequence[int] | None) -> tuple[list[int], list[str]]:
    """The numbers of ranks, and notes about them."""
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
        self, root: Path, sizes: Sequence[int], draw: Random, tally: Tally, *, exact: bool
    ) -> None:
        self._root, self._sizes, self._draw, self._exact = root, sizes, draw, exact
        self.tally = tally
        self._pace = Pace()
        self._whole: dict[str, Outcome] = {}  # by algorithm
        self._stops: set[int] = set()  # which of the disturbances are signals to stop

    def play(self, kills: int, stops: int = 0) -> Iterator[None]:
        """Runs until so many attempts were killed, and stopped; yields after each of these."""
        left, number = kills + stops, 0
        most = min(KILLS, -(-left // len(ALGORITHMS)))  # so that few of them reach all algorithms
        self._stops = set(self._draw.sample(range(left), stops))
        while left and len(self.tally.wrong) < ENOUGH:
            algorithm = ALGORITHMS[number % len(ALGORITHMS)]
            number += 1
            if algorithm not in self._whole and not self._undisturbed(algorithm):
                return
            for _ in self._disturbed(f"{number:03d}-{algorithm}", algorithm, min(left, most)):
                left -= 1
                yield

    def _undisturbed(self, algorithm: str) -> bool:
        """Run without kills, for the comparison; return whether it finished."""
        folder, job = self._new(f"000-{algorithm}", algorithm)
        start = Start(self._sizes[0], ["run", str(job), "--out", str(folder.root)], False)
        ending = play(start, None, folder, self._pace, KEEP)
        if ending.kind != "finished":
            self.tally.wrong.append(f"{folder.root}: undisturbed: {ending.name}")
            return False
        self._whole[algorithm] = found = outcome(folder)
        rounds = [entry["round"] for entry in found.log]
        if rounds != list(range(1, ROUNDS + 1)):
            self.tally.wrong.append(f"{folder.log}: undisturbed: rounds {rounds}")
        return True

    def _disturbed(self, name: str, algorithm: str, kills: int) -> Iterator[None]:
        """Run to the end through at most so many kills; yields after each."""
        folder, job = self._new(name, algorithm)
        resuming, before, newest = False, 0, -1
        ending = Ending("killed")
        while ending.kind != "finished":
            size = self._draw.choice([n for n in self._sizes if n != before] or self._sizes)
            setting = draw_setting(self._draw, self._root)
            again = ["resume", str(folder.root), *setting.words]
            arguments = again if resuming else ["run", str(job), "--out", str(folder.root)]
            start = Start(size, arguments, refusable=resuming and newest < 0)
            kill = self._disturbance() if kills else None
            ending = play(start, kill, folder, self._pace, KEEP)
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
        """Compare the run with the one without kills; remove it if both agree."""
        self.tally.runs += 1
        try:
            apart = outcome(folder).differences(self._whole[algorithm])
        except StoreError as e:
            self.tally.wrong.append(f"{folder.root}: {e}")
            return
        if apart:
            self.tally.wrong.append(f"{folder.root}: other bits: {', '.join(apart)}")
            return
        shutil.rmtree(folder.root)
        for end in ("yaml", "log", "strace"):
            folder.root.with_name(f"{folder.root.name}.{end}").unlink(missing_ok=True)

    def _new(self, name: str, algorithm: str) -> tuple[RunDir, Path]:
        """A run directory that is not there yet, and its job."""
        job = self._root / f"{name}.yaml"
        setting = draw_setting(self._draw, self._root)
        tree = {**JOB, "algorithm": {"name": algorithm}, **setting.tree}
        job.write_text(yaml.safe_dump(tree))
        return RunDir(self._root / name), job
