"""Load a job together with Python objects: a model, data, and classes of a notebook.

A job file cannot name an object.  The run directory keeps it in a file that is named by its content
(kept/data-DIGEST.npz, kept/objects-FINGERPRINT-DIGEST.pkl), and the job names this file: so every
later command finds it, also after the directory has moved.  The run itself uses the file, not the
object.  A job that names files which another run keeps, as its job.yaml does, gets copies of them.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any, BinaryIO

from safetensors.torch import save as save_tensors
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from hpcfl.comm.base import Comm
from hpcfl.comm.launcher import detect
from hpcfl.data.base import DataConfig
from hpcfl.data.objects import Data, KeptArrays, digest, write_arrays
from hpcfl.errors import DataError, JobError, StoreError, as_job_error, file_error
from hpcfl.io import regular
from hpcfl.io.atomic import PART, make_folder, write_by
from hpcfl.job.load import JobSource, add_task_defaults, check, open_job
from hpcfl.job.registry import REGISTRIES
from hpcfl.job.schema import LoadedJob
from hpcfl.models.base import ModelConfig
from hpcfl.models.module import data_arguments, refuse_scripted
from hpcfl.runs.job_file.record import is_record
from hpcfl.runs.job_file.run_name import RUNS, run_name
from hpcfl.runs.job_file.yaml_file import (
    COMMAND_LINE,
    OVERRIDES,
    RUN,
    JobFile,
    Key,
    Overrides,
    in_own_run,
    override,
    override_texts,
    plain,
    replace_kept,
    tuples,
    with_prefix,
)
from hpcfl.runs.layout import RunDir
from hpcfl.start.record_inputs import require_inputs
from hpcfl.user_code.find_object import MAIN, hold_as, hold_objects, load_objects
from hpcfl.user_code.generators import generators
from hpcfl.user_code.names import KEPT, OBJECTS, KeptName, digest_of, is_kept_name
from hpcfl.user_code.pickled import pickled
from hpcfl.user_code.process_settings import settings_restored

_MODEL = "hpcfl.run(model=...)"
_DATA = "hpcfl.run(data=...)"
_UNNAMED = f"{RUN}{KEPT}/objects{OBJECTS}"  # the file of objects, until its content is known
# Keys of every data set, which are the job's and not the object's: how to divide the examples.
_DIVISION = tuple(field.name for field in fields(DataConfig))


@dataclass
class KeptFiles:
    """The files of a run directory that keep objects, before they are written."""

    contents: dict[str, Callable[[BinaryIO], object]] = field(default_factory=dict)
    """By name, a function that writes the content; it is called on rank 0 alone."""

    def add(self, kind: str, content: bytes, ending: str) -> str:
        """Add a file, which is named by the digest of its content; its path in a job."""
        name = f"{kind}-{digest_of(content)}{ending}"
        return self.add_written(name, lambda file: file.write(content))

    def add_written(self, name: str, write: Callable[[BinaryIO], object]) -> str:
        """Add a file that ``write`` writes; its path in a job."""
        self.contents[name] = write
        return f"{RUN}{KEPT}/{name}"

    def agree(self, loaded: LoadedJob, folder: RunDir, comm: Comm) -> LoadedJob:
        """Collective: refuse ranks that passed other objects than rank 0; the job by its files.

        Equal objects are pickled into other bytes in each process, so the file is that of rank 0,
        or the one that the run has already.

        Only ``allgather`` is used: before ``discover_ranks`` no rank has taken its GPU, and any
        other collective of NCCL would be on GPU 0 of all ranks of a host.

        Raises:
            JobError: on all ranks: an object is another one on some rank.
        """
        if comm.rank == 0:
            alike = {_of_objects(path.name): path.name for path in folder.kept.glob("objects-*")}
            names = {name: alike.get(_of_objects(name), name) for name in self.contents}
        else:
            names = {name: name for name in self.contents}
        first, *others = (text.split() for text in comm.allgather(" ".join(sorted(names.values()))))
        for rank, found in enumerate(others, 1):
            if other := {*map(_of_objects, first)} ^ {*map(_of_objects, found)}:
                parts = sorted({name.partition("-")[0] for name in other})
                raise JobError(
                    f"hpcfl.run: rank {rank} was given another {' and '.join(parts)} than rank 0; "
                    "make the objects equal on all ranks, from the same seed",
                    collective=True,
                )
        agreed = {_of_objects(name): name for name in first}
        for name in [*self.contents]:
            to_use = agreed[_of_objects(name)]
            if to_use != name:
                self.contents[to_use] = self.contents.pop(name)
                hold_as(name, to_use)
                names = renamed(loaded.names, name, to_use)
                loaded = replace(loaded, names=names, job=renamed(loaded.job, name, to_use))
        return loaded

    def write(self, folder: RunDir) -> None:
        """Write the files, and delete those that a refused start left; on rank 0 alone.

        A run that has a checkpoint has its files already: nothing is written.

        Raises:
            JobError: the folder cannot be written, is in use, or holds a run that keeps other
                objects.
            DiskError: the disk is full or fails.
            StoreError: a file of another run, which the job names, cannot be read.
        """
        if not self.contents and not folder.kept.exists():
            return
        if folder.has_checkpoint:  # ``agree`` has found the objects
            absent = [name for name in self.contents if not (folder.kept / name).exists()]
            if absent:
                raise JobError(
                    f"{folder.root}: holds a run of another job: it keeps no {absent[0]}, which "
                    "was made of the objects that were passed; choose another directory with out="
                )
            return
        folder.refuse_log_without_checkpoint()  # before files that it needs are deleted
        try:
            make_folder(folder.kept)
        except OSError as e:
            message = f"{folder.kept}: cannot be made: {e.strerror}; choose another with out="
            raise file_error(e, message, JobError) from e
        folder.lock()
        for path in folder.kept.iterdir():
            name = path.name.removesuffix(PART)
            if is_kept_name(name) and (name != path.name or name not in self.contents):
                path.unlink()
        for name, write in self.contents.items():
            write_by(folder.kept / name, write)

    def release(self) -> None:
        """Let go of the objects, once they are written."""
        self.contents.clear()


def load_job(
    job: JobSource,
    overrides: Overrides = (),
    *,
    out: Path | None = None,
    model: Any = None,
    data: Any = None,
    copies: bool = True,
    origin: str = COMMAND_LINE,
) -> tuple[LoadedJob, KeptFiles]:
    """Read and check a job whose model, data and classes may be objects.

    Args:
        job: a job file, the name of a packaged job, or a mapping.
        overrides: settings over those of the job and of the objects.
        out: the run directory; the default one when absent, see ``run_name``.
        model: see ``hpcfl.run``.
        data: see ``hpcfl.run``.
        copies: whether it will run, so that it needs the data of a record, and copies of the files
            of another run that the job names.
        origin: of the overrides, as error messages name it.

    Returns:
        The job, and the files that it names in the run directory, which are not written yet.

    Raises:
        JobError, DataError: something is wrong with the job or an object.
    """
    texts, file = override_texts(overrides), open_job(job)
    objects = _Objects(file)
    if model is not None or data is not None:
        override(file, [text for text in texts if text.startswith("task=")], origin)
        texts_left = [text for text in texts if not text.startswith("task=")]
        add_task_defaults(file)  # for the part of the task that is no object
        file.tree.pop("task", None)
    else:
        texts_left = [*texts]
    if data is not None:
        objects.put_data(data)
    if model is not None:
        objects.put_model(model)
    override(file, texts_left, origin)
    if isinstance(model, type | FunctionType):
        objects.check_arguments(model)
    objects.keep_classes()
    name = run_name(file.name, texts, [*objects.kept_files.contents])
    if copies:
        objects.keep_named()
    root = (out or RUNS / name).absolute()
    objects.pickle(root / KEPT)
    file.tree = with_prefix(file.tree, RUN, f"{root}/")
    loaded = check(file, name)
    if copies and is_record(Path(file.name)):
        require_inputs(Path(file.name), loaded.tree)
    return replace(loaded, notes=tuple(objects.notes)), objects.kept_files


@contextmanager
def loaded_for_trial(
    job: JobSource, overrides: Overrides, model: Any, data: Any, *, alone: bool = True
) -> Iterator[LoadedJob]:
    """A job with objects, for the block: their files are in a temporary directory.

    Args:
        job: as for ``load_job``, as are the next three.
        overrides: settings.
        model: an object.
        data: an object.
        alone: whether this rank does not run the job together with others, which have their files
            elsewhere.

    Raises:
        JobError, DataError: as for ``load_job``; or several ranks run a job with objects.
    """
    with TemporaryDirectory(prefix="hpcfl-") as root:
        out = Path(root) / "run"
        loaded, kept_files = load_job(
            job, overrides, out=out, model=model, data=data, copies=False, origin=OVERRIDES
        )
        if not alone and kept_files.contents and detect(os.environ).size > 1:
            raise JobError(
                "plan_job: measure=True measures objects on one rank alone; put their code into a "
                "module that the job names, and say mpirun -n N hpcfl plan JOB --measure",
                collective=True,
            )
        with RunDir(out) as folder, settings_restored():
            kept_files.write(folder)
            yield loaded


class _Objects:
    """Puts objects into a job as names, and collects the files that keep them."""

    def __init__(self, file: JobFile) -> None:
        self.kept_files = KeptFiles()
        self.notes: list[str] = []
        self._objects: dict[str, Any] = {}
        self._file = file

    def put_data(self, data: Any) -> None:
        """Let the job use this data; its own keys say how to divide it among clients.

        Raises:
            JobError, DataError: it cannot be used, or not be kept.
        """
        old = self._file.tree.get("data")
        division = (
            {key: old[key] for key in _DIVISION if key in old} if isinstance(old, dict) else {}
        )
        if isinstance(data, tuple) and len(data) in (2, 3):
            data = Data(*data)
        if isinstance(data, Data):
            before = generators()
            arrays = data.arrays()
            if drew := generators().changed(before):
                raise DataError(
                    f"data: its items draw from {' and '.join(drew)} as they are read; hpcfl.run "
                    "keeps examples as they are: pass a data set that draws nothing at random (no "
                    "augmentation)"
                )
            name = f"data-{digest(arrays)}.npz"
            path = self.kept_files.add_written(name, partial(write_arrays, arrays))
            if data.owners is not None:  # the owners divide it
                for key in ("partition", "clients"):
                    division.pop(key, None)
            kind = f"{KeptArrays.__module__}.{KeptArrays.__qualname__}"
            own: dict[str, Any] = {"path": path}
            own |= {} if data.classes is None else {"classes": data.classes}
            own |= {} if data.label_type is None else {"label_type": data.label_type}
            own |= {"integers": True} if data.integers else {}
            own |= {} if data.padding is None else {"padding": data.padding}
            section = {"kind": kind, **division, **own}
        elif (named := self._section("data", data, DataConfig)) is not None:
            section = {**division, **named}
        else:
            raise JobError(
                f"{_DATA}: found a {type(data).__name__}, expected hpcfl.Data(train=..., test=..., "
                "owners=...), a tuple (train, test, owners), or a subclass of "
                "hpcfl.data.base.DataConfig"
            )
        self._file.put(("data",), section, _DATA)

    def put_model(self, model: Any) -> None:
        """Let the job use this model.

        Raises:
            JobError: it cannot be used, or not be kept.
        """
        section = self._section("model", model, ModelConfig)
        if section is None and isinstance(model, nn.Module):
            refuse_scripted(_MODEL, model)
            section = self._module(model)
        elif section is None and isinstance(model, type | FunctionType):
            section = {"name": "module", "of": self._name(model, _MODEL)}
        if section is None:
            raise JobError(
                f"{_MODEL}: found a {type(model).__name__}, expected a torch.nn.Module, or a class "
                "or function that makes one"
            )
        self._file.put(("model",), section, _MODEL)

    def check_arguments(self, make: Any) -> None:
        """Compare the arguments of a model's class or function with its signature.

        Raises:
            JobError: one is unknown, or missing.
        """
        section = self._file.tree["model"]
        if section.get("name") == "module":
            arguments = section.get("arguments")
            data_arguments(
                make, make.__qualname__, arguments if isinstance(arguments, dict) else {}
            )

    def keep_classes(self) -> None:
        """Keep the code of the classes and functions of ``__main__`` that the job names.

        Raises:
            JobError: one cannot be kept.
        """
        tree = self._file.tree
        named = [(section, kind.key) for section, kind in REGISTRIES.items()]
        for section, key in (*named, ("model", "of")):
            keys = tree.get(section)
            if isinstance(keys, dict) and key in keys:
                keys[key] = self._in_file(keys[key], (section, key))
        scores = tree.get("evaluate")
        if isinstance(scores, dict) and isinstance(scores.get("metrics"), tuple):
            metrics = enumerate(scores["metrics"])
            scores["metrics"] = tuple(
                self._in_file(path, ("evaluate", "metrics", k)) for k, path in metrics
            )
        callbacks = tree.get("callbacks")
        if isinstance(callbacks, tuple):
            tree["callbacks"] = tuple(
                {**entry, "name": self._in_file(entry["name"], ("callbacks", k, "name"))}
                if isinstance(entry, dict) and "name" in entry
                else self._in_file(entry, ("callbacks", k))
                for k, entry in enumerate(callbacks)
            )

    def _in_file(self, name: Any, key: Key) -> Any:
        """The name of a class or function, in a kept file if ``__main__`` defines it.

        Args:
            name: of the job; left as it is if it is that of no class or function of ``__main__``.
            key: of the job that names it.
        """
        if not (isinstance(name, str) and name.startswith(f"{MAIN}.")):
            return name
        found = getattr(sys.modules[MAIN], name.removeprefix(f"{MAIN}."), None)
        if not isinstance(found, type | FunctionType):
            return name
        return self._name(found, f"{self._file.where(key)}: {'.'.join(map(str, key))}")

    def keep_named(self) -> None:
        """Keep copies of the files of other runs that the job names.

        Raises:
            StoreError: a file of code is missing, or was changed.
        """

        def keep(named: KeptName) -> str:
            if named.path.name not in self.kept_files.contents:
                if named.path.suffix == OBJECTS:
                    load_objects(named.path)  # now, as the copy is written later
                self.kept_files.add_written(named.path.name, partial(_copy, named.path))
            return in_own_run(named)

        self._file.tree = replace_kept(self._file.tree, keep)

    def _section(self, section: str, found: Any, base: type[Any]) -> dict[str, Any] | None:
        """The section that names a class of our interface, or an object of one; else None."""
        cls = found if isinstance(found, type) else type(found)
        if not issubclass(cls, base):
            return None
        named = {REGISTRIES[section].key: self._name(cls, f"hpcfl.run({section}=...)")}
        if found is cls:
            return named
        own = {key: value for key, value in plain(asdict(found)).items() if value is not None}
        return {**named, **tuples(own)}

    def _name(self, found: Any, what: str) -> str:
        """The name of a class or function in a job."""
        name = found.__qualname__
        if found.__module__ != MAIN and "." not in name:
            if getattr(sys.modules.get(found.__module__), name, None) is not found:
                raise JobError(
                    f"{what}: {found.__module__}.{name} is not what its module has under this name "
                    "now; pass the class or function of the module itself"
                )
            return f"{found.__module__}.{name}"
        return self._keep(found, found.__name__)

    def _keep(self, found: Any, name: str) -> str:
        """The name, in a job, of an object in the kept file."""
        name = name if name.isidentifier() else "made"
        while self._objects.get(name, found) is not found:
            name += "_"
        self._objects[name] = found
        return f"{_UNNAMED}:{name}"

    def pickle(self, folder: Path) -> None:
        """Put all that is kept into one file, and name it in the job.

        Args:
            folder: where the run will have the file.

        Raises:
            JobError: an object cannot be pickled.
        """
        if not self._objects:
            return
        does = f"{', '.join(self._objects)} cannot be pickled"
        says = (
            "; leave out what cannot be, such as a lock or an open file, or put the code into a "
            "module"
        )
        with as_job_error("hpcfl.run", does, "", *self._objects.values(), advice=says):
            content, fingerprint = pickled(self._objects)
        name = f"objects-{fingerprint}-{digest_of(content)}{OBJECTS}"
        path = self.kept_files.add_written(name, lambda file: file.write(content))
        hold_objects(folder / name, content)
        self._file.tree = with_prefix(self._file.tree, _UNNAMED, path)

    def _module(self, model: nn.Module) -> dict[str, Any]:
        """The section of a module, whose present weights are the initial ones."""
        for name, tensor in model.state_dict().items():
            if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                raise JobError(
                    f"{_MODEL}: {name} has no shape yet, as the module is lazy; pass a batch "
                    "through it first"
                )
        weights = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in model.state_dict().items()
        }
        init = self.kept_files.add("model", save_tensors(weights), ".safetensors")
        self.notes.append("model: starts from the module's present weights")
        return {"name": "module", "of": self._keep(model, "model"), "init": init}


def _of_objects(name: str) -> str:
    """The name of a kept file without what differs between files of equal objects."""
    return name.rpartition("-")[0] if name.endswith(OBJECTS) else name


def renamed(value: Any, name: str, other: str) -> Any:
    """A job, a part or its tree, with another name of a file in all texts."""
    if isinstance(value, str):
        return value.replace(name, other)
    if isinstance(value, Mapping):
        return {key: renamed(below, name, other) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(renamed(below, name, other) for below in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {key: renamed(part, name, other) for key, part in parts.items()}
        return replace(value, **new) if new != parts else value
    return value


def _copy(path: Path, file: BinaryIO) -> None:
    """Copy a file of another run into an open file.

    Raises:
        StoreError: it is missing.
    """
    try:
        source = regular.open_binary(path)
    except OSError as e:
        message = f"{path}: cannot be read: {e.strerror or e}; put it back, the job names it"
        raise file_error(e, message, StoreError) from e
    with source:
        shutil.copyfileobj(source, file)
