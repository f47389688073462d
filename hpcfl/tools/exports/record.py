"""Copy what a run records about itself, to be kept or published without its checkpoints.

The copy has the job, the history, the log and clients.csv, and ``hpcfl report`` reads it like the
run itself.  It is some hundred bytes a round, whatever the model's size, and cannot be resumed.
``hpcfl run`` takes it as a job (``hpcfl.runs.job_file.record``): so it also has the source of the
user's own classes, the versions of packages, and digests of what a repetition must have and must
give.

The copy names no host and no folder: hosts are called host0, host1, ..., an absolute path is cut to
its last part, and messages and notes are left out of the history.  Sources are copied as they are.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from hpcfl.checkpoint import initial
from hpcfl.errors import JobError, file_error
from hpcfl.io import regular
from hpcfl.io.atomic import write_file
from hpcfl.io.files import readable
from hpcfl.runs.branches import Branch, read_branches, write_branches
from hpcfl.runs.client_table import table_until
from hpcfl.runs.history import recorded_code
from hpcfl.runs.job_file.record import CODE
from hpcfl.runs.job_file.yaml_file import plain, relative_to_run, write_resolved
from hpcfl.runs.layout import RunDir, history_text, last_start
from hpcfl.runs.log import LogReader, log_line
from hpcfl.runs.manifest import (
    INITIAL,
    SERVER,
    Checkpoint,
    read_files,
    read_newest,
    read_run_files,
)
from hpcfl.start.code_digests import edited
from hpcfl.tools.exports.record_readme import readme
from hpcfl.user_code.names import KEPT, digest_of

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*")  # of a file, without blanks: other texts are many


def export_record(root: Path, target: Path) -> tuple[list[Path], list[str]]:
    """Write the record of a run into a folder.

    The run may be alive: nothing of it is changed or locked.

    Args:
        root: the run directory.
        target: a folder that does not exist yet, or is empty.

    Returns:
        The files written, and a line for each thing that is not in the record.

    Raises:
        JobError: the directory holds no run, or the folder is not empty, lies in a run or cannot be
            made.
        StoreError: a file of the run is damaged.
        DiskError: a file cannot be written.
    """
    source, copy = RunDir(root), RunDir(target)
    with readable(root):
        source.require()
        job = _without_folders(plain(relative_to_run(source.read_job().tree, root)))
        history = source.history_entries()
        log = LogReader(source.log).read()
        branches = read_branches(source.branches)
        table = table_until(source.clients, int(log[-1]["round"]) if log else 0)
        models = (
            read_newest(source.checkpoints, _digests_of_models) if source.has_checkpoint else {}
        )
        newest = last_start(history)
        sources, missing = _sources(newest.get("code", {}))
    missing += _changed(history, models.get("round", 0))
    if source.kept.exists():
        missing.append(
            f"{KEPT}: the objects that hpcfl.run was given are not copied, as a pickle may name "
            f"folders; copy {KEPT} of the run into the record yourself"
        )
    files = {
        copy.job: write_resolved(job),
        copy.history: history_text(_without_names(history)),
        copy.log: b"".join(map(log_line, log)),
    }
    if table:
        files[copy.clients] = table
    if branches:
        own = [Branch.parse(_without_folders(branch.entry)) for branch in branches]
        files[copy.branches] = write_branches(own)
        missing.append("the run that this branch began in: a branch cannot be run from its job")
    digests = {key: newest[key] for key in ("inputs", "split", "code", "init") if key in newest}
    files[target / "digests.json"] = _lines({**digests, **models})
    files[target / "packages.txt"] = _packages(newest)
    files |= {target / CODE / path: content for path, content in sources.items()}
    files[target / "README.md"] = readme(target.resolve().name, job, history, missing, sources)
    copy.refuse_inside_run()  # a report takes all below a run for its own
    _make_folder(target)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    return list(files), missing


def _digests_of_models(checkpoint: Checkpoint) -> dict[str, Any]:
    """The round of a checkpoint, and the digests of the initial model and of the server there."""
    root = checkpoint.folder.parents[1]
    x0 = initial.read(RunDir(root).initial, read_run_files(checkpoint, root)[INITIAL])
    server = dict(read_files(checkpoint))[SERVER]
    return {
        "round": checkpoint.round,
        "initial_model": _digest({"x": x0}),
        "final_model": _digest(load_tensors(server)),
    }


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of tensors with their names, behind its name."""
    found = sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{found.hexdigest()}"


def _sources(code: Mapping[str, str]) -> tuple[dict[str, bytes], list[str]]:
    """The sources of the user's modules by their paths, and a line for each that is not found.

    A file is taken if it has the digest that the run recorded.  No module is executed for it.
    """
    found, missing = dict[str, bytes](), []
    for module, digest in code.items():
        parts = module.split(".")
        names = [f"{'/'.join(parts)}.py", f"{'/'.join(parts)}/__init__.py"]
        for folder in _folders(parts[0]) if all(map(str.isidentifier, parts)) else ():
            for name in names:
                if (folder / name).is_file():
                    content = regular.read(folder / name)
                    if digest_of(content) == digest and name not in found:
                        found[name] = content
                        missing += [
                            f"{path}, which {name} names and may read: if it does, copy it to "
                            f"{CODE}/{path} of the record"
                            for path in _named_beside(content, folder / name, folder)
                        ]
        if found.keys().isdisjoint(names):
            missing.append(
                f"the source of module {module} ({digest}), which is not found or was edited since "
                "the run; put it back, and its folder into PYTHONPATH"
            )
    return found, missing


def _named_beside(source: bytes, path: Path, root: Path) -> list[str]:
    """The files beside a source, or below it, that a text in it names; by their paths in ``root``.

    They may be large or private, so they are named and not copied.
    """
    texts = {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names = [name for name in sorted(texts) if _NAME.fullmatch(name) and ".." not in name]
    beside = [path.parent / name for name in names if not name.endswith(".py")]
    return [file.relative_to(root).as_posix() for file in beside if file.is_file()]


def _folders(name: str) -> Iterator[Path]:
    """The folders in which a module or package may be."""
    yield Path()
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # a module without one, such as __main__
        return
    if spec is not None and spec.submodule_search_locations:
        yield from (Path(folder).parent for folder in spec.submodule_search_locations)
    elif spec is not None and spec.origin:
        yield Path(spec.origin).parent


def _changed(history: Sequence[Mapping[str, Any]], done: int) -> list[str]:
    """A line about the modules that were edited between the starts of a run."""
    now = last_start(history).get("code", {})
    modules = sorted({name for code in recorded_code(history, done) for name in edited(code, now)})
    if not modules:
        return []
    return [f"the former source of {', '.join(modules)}, with which earlier starts made rounds"]


def _packages(start: Mapping[str, Any]) -> bytes:
    """The versions that a start recorded, as pip reads them; of hpcfl the commit of its source."""
    own = {name: start.get(name) for name in ("torch", "numpy", "h5py", "mpi4py")}
    found = {name: version for name, version in own.items() if version}
    found |= start.get("packages", {})
    found.pop("hpcfl", None)
    lines = [f"# Python {start.get('python')}"]
    lines.append(f"# hpcfl {start.get('hpcfl')}, from its source at commit {start.get('git')}")
    for name in sorted(found):
        # Indexes of packages have no local versions such as 2.13.0+cpu.
        version, _, local = found[name].partition("+")
        lines.append(f"{name}=={version}" + (f"  # the run had {found[name]}" if local else ""))
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(value: Mapping[str, Any]) -> bytes:
    """JSON with a line for each value, for ``diff``."""
    return f"{json.dumps(value, indent=1, sort_keys=True)}\n".encode()


def _make_folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        found = next(target.iterdir(), None)
    except OSError as e:
        message = f"--record: {target} cannot be made: {e.strerror}; name another folder"
        raise file_error(e, message, JobError) from e
    if found is not None:
        raise JobError(f"--record: {target} holds {found.name} already; name an empty folder")


def _without_names(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The history without texts that may name a host or a folder."""
    hosts: dict[str, str] = {}
    entries = []
    for entry in history:
        named = ("notes", "request")
        kept = _without_folders({key: v for key, v in entry.items() if key not in named})
        for rank in kept.get("map") or ():
            rank["host"] = hosts.setdefault(str(rank.get("host")), f"host{len(hosts)}")
        if isinstance(kept.get("outcome"), dict):
            kept["outcome"]["message"] = ""
        entries.append(kept)
    return entries


def _without_folders(value: Any) -> Any:
    """A value in which every text that is an absolute path is its last part."""
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    if isinstance(value, str) and PurePath(value.removeprefix("file://")).is_absolute():
        return PurePath(value).name
    return value
