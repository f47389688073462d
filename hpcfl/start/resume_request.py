"""A request to resume a run: the job, the checkpoint, and whether the directory allows it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from shlex import quote
from typing import Any, NoReturn, Self

from hpcfl.data.fingerprints import Digests, require_same
from hpcfl.errors import DiskError, JobError, StoreError
from hpcfl.job.load import require_runnable, validate_keys
from hpcfl.job.registry import REGISTRIES
from hpcfl.job.schema import LoadedJob
from hpcfl.runs.job_file import yaml_file
from hpcfl.runs.job_file.resume_rules import (
    differences,
    immutable_changes,
    input_places,
    require_allowed,
)
from hpcfl.runs.job_file.settings import Settings, flatten
from hpcfl.runs.job_file.yaml_file import JobFile
from hpcfl.runs.layout import RunDir
from hpcfl.runs.log import require_log_prefix
from hpcfl.runs.manifest import Checkpoint, find, folder_of, rounds
from hpcfl.runs.requests import Request, is_done
from hpcfl.start.components.choose_executor import equal_size
from hpcfl.start.components.components import Components
from hpcfl.start.load_run import load_run


@dataclass(frozen=True)
class ResumeRequest:
    """A checked request to resume a run: from which checkpoint, and with which changes."""

    source: RunDir
    loaded: LoadedJob
    """The job with the changes."""
    job_before: bytes
    """The content of job.yaml before the changes."""
    job_after: bytes
    """And after them."""
    round: int | None
    """The checkpoint to resume from; None is the newest."""
    verify_states: bool
    """Whether all client states are checked before the first round."""
    copied: bool
    """Whether the run is to be copied first, and the copy resumed; the copy may be a branch."""
    parent: LoadedJob | None = None
    """The job without the changes, of a branch."""
    overrides: tuple[str, ...] = ()
    """The changes, as they were given."""
    origin: str = yaml_file.COMMAND_LINE
    """Of the changes, as error messages name it."""

    @classmethod
    def of(
        cls,
        source: RunDir,
        overrides: Sequence[str],
        *,
        round: int | None,
        verify_states: bool,
        copied: bool,
        origin: str = yaml_file.COMMAND_LINE,
    ) -> Self:
        """Read the job with the overrides, and check that the run, or a branch, may have them.

        Args:
            source: the run.
            overrides: changes of its job.
            round: the checkpoint to resume from; None is the newest.
            verify_states: whether all client states are checked before the first round.
            copied: whether a copy is resumed, which may be a branch.
            origin: of the overrides, as error messages name it.

        Raises:
            JobError: it is no run, or the overrides are wrong, would change past rounds, or cannot
                begin a branch.
        """
        source.require()
        source.refuse_log_without_checkpoint()
        found = source.job_content()
        parent, file = load_run(source, found), source.parse_job(found)
        before = flatten(parent.tree)
        yaml_file.override(file, overrides, origin)
        require = partial(require_allowed, before, run=source.root, copied=copied, origin=origin)
        try:
            loaded = validate_keys(file, parent.name)
        except JobError:
            # algorithm.name=X fails on the keys of the run's own algorithm; that the name must not
            # change is the better message.
            require(_with_classes_of(file, before))
            raise
        after = flatten(loaded.tree)
        if not copied:  # what a start settles is compared once it has: ``require_block_size``
            if after["executor"] == "auto":
                after |= {key: before[key] for key in ("executor", "block_size")}
            elif before["block_size"] is not None:
                after["block_size"] = before["block_size"]
        # First: an immutable key is a better reason than a combination it is part of.
        require(after)
        require_runnable(loaded, file)
        branch = any(immutable_changes(before, after))
        changes = {} if branch else differences(before, after)
        return cls(
            source,
            loaded,
            found,
            _changed(source, found, changes),
            round,
            verify_states,
            copied,
            parent if branch else None,
            tuple(overrides),
            origin,
        )

    @classmethod
    def of_job(cls, source: RunDir, components: Components) -> Self:
        """The job of ``components``, from the newest checkpoint on.

        Raises:
            JobError: the run in ``source`` is of another job.
        """
        found, loaded = source.job_content(), components.loaded
        before, after = flatten(load_run(source, found).tree), flatten(loaded.tree)
        for key, there, asked in immutable_changes(before, after):
            remark = _remarks(components, before).get(key, "")
            raise JobError(
                f"{source.root}: holds a run of another job: {key} is {there} there{remark}, "
                f"{asked} here; choose another directory with --out"
            )
        changed = _changed(source, found, differences(before, after))
        return cls(source, loaded, found, changed, None, verify_states=True, copied=False)

    def of_copy(self, copy: RunDir, job: bytes) -> Self:
        """The request to resume the copy that was made, whose job.yaml has the content ``job``."""
        return replace(
            self,
            source=copy,
            job_before=job,
            job_after=job,
            round=None,
            verify_states=False,  # they were compared as they were copied
            copied=False,
        )

    def require_block_size(self, components: Components) -> None:
        """Refuse another ``block_size`` than the run's, once the executor of this start is chosen.

        Raises:
            JobError: it is another one.
        """
        before = flatten(load_run(self.source, self.job_before).tree)
        require_allowed(
            before,
            before | {"block_size": components.job.block_size},
            self.source.root,
            copied=False,
            origin=self.origin,
            remarks=_remarks(components, before),
        )

    @property
    def recorded(self) -> Request | None:
        """What the history is to say of the request; None where it may be repeated at any time."""
        once = self.copied or self.round is not None
        return Request(self.round, self.overrides) if once else None

    def checkpoint(self, inputs: Digests) -> tuple[list[int], Checkpoint]:
        """The rounds that the run keeps, up to the one to begin at, and that checkpoint.

        Args:
            inputs: the digests of the job's inputs as they are now.

        Raises:
            DataError: an input changed since the run began.
            JobError: that round is not kept, or the run went back there by the same request; the
                rounds asked for are done, job.yaml changed, or an earlier version divided the
                examples otherwise.
            StoreError: there is no checkpoint, or a damaged one.
        """
        folder = self.source
        retained_rounds = rounds(folder.checkpoints, self.round)
        self._refuse_repeated()
        with self.suggest_older(retained_rounds):
            newest = find(folder.checkpoints, retained_rounds[-1])
        places = input_places(flatten(self.loaded.tree))
        before = input_places(flatten(load_run(folder).tree))
        if newest.job != folder.job_fingerprint:
            raise JobError(
                f"{newest.folder}: is of another job than {folder.job}, such as another seed: one "
                "of the two was changed or is of another run; put back the one that belongs here, "
                "or run the job into another directory"
            )
        _refuse_unnamed_order(folder)
        require_same(newest.inputs, inputs, places, before, folder.root)
        if self.loaded.job.rounds < newest.round:
            self._refuse_fewer_rounds(newest.round, retained_rounds)
        return retained_rounds, newest

    def _refuse_repeated(self) -> None:
        """Refuse to go back once more by the request that the run went back by.

        What it has done since would be lost to a command that is given again to go on.
        """
        if self.copied or self.round is None or self.recorded is None:
            return
        folder = self.source
        later = [round for round in rounds(folder.checkpoints) if round > self.round]
        if later and is_done(folder.history_entries(), self.recorded):
            folders = " ".join(quote(str(folder_of(folder.checkpoints, at))) for at in later)
            raise JobError(
                f"{folder.root}: the same command went back to round {self.round} before, and "
                f"round {later[-1]} is done since; to go on: "
                f"`hpcfl resume {quote(str(folder.root))}`; to go back once more, remove the later "
                f"checkpoints first: `rm -r {folders}`"
            )

    def _refuse_fewer_rounds(self, done: int, retained_rounds: Sequence[int]) -> NoReturn:
        """Refuse a number of rounds below that of the checkpoint to begin at."""
        asked, root = self.loaded.job.rounds, quote(str(self.source.root))
        older = [str(round) for round in retained_rounds if round <= asked]
        cure = f"; give rounds={done} or more"
        if older:
            cure += f", or go back by `hpcfl resume {root} rounds={asked} --round {older[-1]}`"
        if len(older) > 1:
            cure += f"; rounds {', '.join(older[:-1])} are kept too"
        raise JobError(f"rounds: {asked} are asked for, but {done} are done{cure}")

    @contextmanager
    def suggest_older(self, retained_rounds: Sequence[int]) -> Iterator[None]:
        """Add to an error about the last of these rounds how to resume from an earlier one."""
        try:
            yield
        except (StoreError, DiskError) as e:
            older = list(filter(self._has_log, retained_rounds[:-1]))
            if older:
                offer = f"the one before: `hpcfl resume {self.source.root} --round {older[-1]}`"
            else:
                kept = len(retained_rounds) > 1
                reason = "the log reaches no older checkpoint" if kept else "no older one is kept"
                offer = f"{reason}: run the job again into another directory"
            message = f"{e}; {offer}"
            raise type(e)(message, collective=e.collective, prints=e.prints) from e

    def _has_log(self, round: int) -> bool:
        """Whether the log is whole up to the checkpoint of a round, which needs it."""
        try:
            require_log_prefix(self.source.log, find(self.source.checkpoints, round).log)
        except (StoreError, DiskError):
            return False
        return True


def _remarks(components: Components, begun: Settings) -> dict[str, str]:
    """What to add to the value of a key in the job of a run that has begun."""
    size = begun["block_size"]
    chosen = size is not None and size == equal_size(components)
    return {"block_size": " (chosen at its start)"} if chosen else {}


def _refuse_unnamed_order(folder: RunDir) -> None:
    """Refuse the split of an earlier version, whose job.yaml does not name the order of dealing."""
    partition = folder.read_job().tree["data"].get("partition") or {}
    if partition.get("form") == "symmetric" and partition["alpha"] and "order" not in partition:
        raise JobError(
            f"{folder.job}: data.partition has no order: an earlier version dealt its examples as "
            "order: clients does; resume with that version, or run the job again into another "
            "directory"
        )


def _with_classes_of(file: JobFile, job: Settings) -> Settings:
    """The job with the algorithm, the model and the data that a file names, if hpcfl knows them.

    The keys of another class go: the new one may not have them.
    """
    asked = flatten(file.tree)
    for section, registry in REGISTRIES.items():
        key = f"{section}.{registry.key}"
        if asked.get(key) in registry.known and asked[key] != job.get(key):
            others = {k: value for k, value in job.items() if not k.startswith(f"{section}.")}
            job = {**others, key: asked[key]}
    return job


def _changed(source: RunDir, found: bytes, changes: Mapping[str, Any]) -> bytes:
    """The content ``found`` of job.yaml with ``changes``."""
    file = source.parse_job(found)
    for key, value in changes.items():
        file.put(tuple(key.split(".")), value, yaml_file.COMMAND_LINE)
    return source.job_text(yaml_file.plain(file.tree)) if changes else found
