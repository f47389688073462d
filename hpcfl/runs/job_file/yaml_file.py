"""Read YAML into a tree of plain values, with the line of every value.

Common mistakes that PyYAML accepts are errors here: a duplicate key, a key that is no text
(``on``), a missing space (``{lr:0.1}``).  ``1e-3`` is a number, as in YAML 1.2; in YAML 1.1, which
PyYAML reads, it is text.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from datetime import date, datetime
from pathlib import Path, PurePath
from types import FunctionType
from typing import Any
from zlib import crc32

import yaml

from hpcfl.errors import JobError, StoreError, file_error
from hpcfl.io.regular import open_binary
from hpcfl.user_code.names import KEPT, KeptName, kept_name

Key = tuple[str | int, ...]
Tree = dict[str, Any]
Overrides = Sequence[str] | Mapping[str, Any] | None

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", re.ASCII)
_PLAIN = (bool, int, float, str, date, datetime, type(None))  # what YAML reads as single values
RUN = "$RUN/"
"""Begins a path of job.yaml that is in the folder of this file, which may be moved."""
# Where overrides are from, as error messages name it: of a command, or of a call from Python.
COMMAND_LINE, OVERRIDES = "command line", "overrides"
LARGEST_FILE = 1 << 20  # bytes; large lists, such as cohorts to replay, go into other files
LARGEST_TREE = 200_000  # values; nested aliases could otherwise expand to billions


@dataclass
class JobFile:
    """A tree of plain values (lists as tuples) and where each came from."""

    name: str
    tree: Tree
    lines: dict[Key, str] = field(default_factory=dict)

    def where(self, key: Key) -> str:
        """The place of ``key``, or of the nearest value above it: "jobs/x.yaml:12"."""
        while key:
            if key in self.lines:
                return self.lines[key]
            key = key[:-1]
        return self.name

    def put(self, key: Key, value: Any, where: str) -> None:
        """Set a value, and make the sections above it that are absent or null.

        ``where`` is its place in error messages.
        """
        tree = self.tree
        for depth, part in enumerate(key[:-1], 1):
            below = tree.get(str(part))
            if below is None:  # absent, or null
                self.lines[key[:depth]] = where
                below = tree[str(part)] = {}
            if not isinstance(below, dict):
                dotted = ".".join(map(str, key[:depth]))
                raise JobError(f"{where}: {dotted} is a single value ({below!r}), not a section")
            tree = below
        tree[str(key[-1])] = value
        for known in [k for k in self.lines if k[: len(key)] == key]:
            del self.lines[known]
        self.lines[key] = where


def read(path: str | Path) -> JobFile:
    """Read a job file.

    Raises:
        JobError: the file cannot be read, or is no YAML mapping.
    """
    try:
        if Path(path, "job.yaml").is_file():
            raise JobError(f"{path}: is the directory of a run; use `hpcfl resume {path}`")
        raw = _content(Path(path))
    except IsADirectoryError as e:
        raise JobError(
            f"{path}: is a directory, expected the file of a job or a sweep; name a file in it"
        ) from e
    except OSError as e:
        raise file_error(e, f"{path}: cannot be read: {e.strerror or e}", JobError) from e
    return _parse(path, raw)


def resolved_content(path: Path) -> bytes:
    """Read the content of the job.yaml of a run directory, for ``parse_resolved``.

    Raises:
        StoreError: it cannot be read.
        DiskError: the disk fails.
    """
    try:
        return _content(path)
    except OSError as e:
        message = (
            f"{path}: cannot be read: {e.strerror or e}; put it back, it is the job of the run"
        )
        raise file_error(e, message, StoreError) from e


def parse_resolved(path: Path, raw: bytes) -> JobFile:
    """Parse the job.yaml of a run directory, whose last line holds the checksum of the others.

    Args:
        path: of the file.
        raw: its content.

    Raises:
        StoreError: it is not as hpcfl wrote it.
        JobError: it is no YAML mapping.
    """
    content, _, last = raw.rpartition(_CHECKSUM)
    found = f"{crc32(content):08x}\n".encode()
    if not content:
        raise StoreError(f"{path}: its last line is not the checksum of a job.yaml; {_PUT_BACK}")
    if last[:8] == found[:8] and last != found:
        behind = last[8:].decode(errors="replace")
        raise StoreError(
            f"{path}: found {behind!r:.60} behind the checksum in its last line, expected a line "
            f"break and nothing else; {_PUT_BACK}"
        )
    if found != last:
        said = last.decode(errors="replace").rstrip("\n")
        raise StoreError(f"{path}: checksum {found[:-1].decode()}, expected {said}; {_PUT_BACK}")
    return _parse(path, raw)


_FORMER = {("diagnostics", "cosine"): False, ("model", "code"): None}
"""Keys of the job.yaml of earlier versions, and the values that ask for nothing."""


def drop_former_keys(tree: dict[str, Any]) -> None:
    """Drop the keys that the job.yaml of an earlier run has without a use."""
    for (section, key), unused in _FORMER.items():
        keys = tree.get(section)
        if isinstance(keys, dict) and keys.get(key, True) is unused:
            del keys[key]


def write_resolved(tree: Mapping[str, Any]) -> bytes:
    """The job.yaml of a run directory."""
    return add_checksum(as_yaml(tree).encode())


def as_yaml(value: Any, *, flow: bool | None = False, width: float = 80) -> str:
    """A tree of plain values as YAML, of which ``read`` makes the same tree.

    Args:
        value: the tree.
        flow: in braces and brackets; None: only the innermost lists and mappings.
        width: characters of a line.
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=flow, width=width)


def add_checksum(content: bytes) -> bytes:
    """The content of a job.yaml, which ends with a line break, with its checksum as a comment."""
    return content + _CHECKSUM + f"{crc32(content):08x}\n".encode()


_CHECKSUM = (
    b"# Change a setting by `hpcfl resume DIR key=value`, not here. crc32 of the lines above: "
)
# Numbers that YAML 1.1 reads to the base 8 or 60, as nobody expects: 010, 1:30.
_OTHER_BASE = re.compile(r"[-+]?(0[0-9_]|[0-9][0-9_]*:)")
_PUT_BACK = (
    "it was edited or damaged: put it back; a setting is changed by `hpcfl resume DIR key=value`"
)


def _content(path: Path) -> bytes:
    """What a file holds; of one that is too large for a job a byte more than a job may have."""
    with open_binary(path) as file:
        return file.read(LARGEST_FILE + 1)


def _parse(path: str | Path, raw: bytes) -> JobFile:
    if len(raw) > LARGEST_FILE:
        raise JobError(
            f"{path}: more than {LARGEST_FILE} bytes are too many for a job; expected under 1 MiB"
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as e:
        raise JobError(f"{path}: is not text in UTF-8: {e}") from e
    file = JobFile(str(path), {})
    tree = _NodeReader(file).value(text)
    if not isinstance(tree, dict):
        raise JobError(f"{path}: expected a mapping of sections, found {_kind(tree)}")
    file.tree = with_prefix(tree, RUN, f"{Path(path).absolute().parent}/")
    return file


def relative_to_run(tree: Mapping[str, Any], root: Path) -> Tree:
    """The tree with ``$RUN/`` for the folder ``root``, in front of the files that it keeps."""
    made: Tree = with_prefix(tree, f"{root.absolute()}/{KEPT}/", f"{RUN}{KEPT}/")
    return made


def replace_kept(value: Any, replace: Callable[[KeptName], str]) -> Any:
    """The tree with other texts for the files that runs keep.

    Args:
        value: the tree.
        replace: the text for such a file.
    """
    if isinstance(value, Mapping):
        return {key: replace_kept(below, replace) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replace_kept(below, replace) for below in value)
    named = kept_name(value) if isinstance(value, str) else None
    return value if named is None else replace(named)


def in_own_run(named: KeptName) -> str:
    """The path of a kept file in a job, whichever run's folder it is in."""
    return f"{RUN}{KEPT}/{named.path.name}{named.attribute}"


def with_prefix(value: Any, prefix: str, other: str) -> Any:
    """The tree with another prefix in the texts that begin with one."""
    if isinstance(value, Mapping):
        return {key: with_prefix(below, prefix, other) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_prefix(below, prefix, other) for below in value)
    if isinstance(value, str) and value.startswith(prefix):
        return other + value.removeprefix(prefix)
    return value


def override_texts(overrides: Overrides) -> tuple[str, ...]:
    """Overrides as ``key.path=value`` texts.

    Args:
        overrides: such texts, or a mapping of dotted keys, or of sections in each other, to values;
            None stands for none.  A mapping changes the keys that it has, but one that names a
            class (``name``, ``kind``) is a whole section: the others' keys would not fit it.

    Raises:
        JobError: it is neither, or a value cannot be written.
    """
    if overrides is None:
        return ()
    if isinstance(overrides, Mapping):
        return tuple(_texts(overrides, ""))
    if not isinstance(overrides, list | tuple) or not all(isinstance(t, str) for t in overrides):
        raise JobError(
            f"overrides: found {overrides!r:.60}, expected a list of 'key.path=value' or a mapping"
        )
    return tuple(overrides)


def _texts(section: Mapping[str, Any], above: str) -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, Mapping) and not {"name", "kind"} & value.keys():
            yield from _texts(value, f"{above}{key}.")
            continue
        yield as_override(f"{above}{key}", from_python(value, f"overrides: {above}{key}"))


def from_python(value: Any, where: str) -> Any:
    """The value in types of YAML.

    Args:
        value: of a caller from Python; may hold numbers and arrays of numpy and torch, paths, and
            classes and functions, which become their dotted paths.
        where: begins the message.

    Raises:
        JobError: it holds something else.
    """
    if isinstance(value, Mapping):
        return {key: from_python(below, f"{where}.{key}") for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [from_python(below, f"{where}.{k}") for k, below in enumerate(value)]
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, PurePath):
        return str(value)
    if type(value) in _PLAIN:
        return value
    if callable(to_list := getattr(value, "tolist", None)):
        return from_python(to_list(), where)
    like = type(value).__name__
    cure = f'; give its class with its keys: {{"name": {like}, ...}}' if is_dataclass(value) else ""
    raise JobError(f"{where}: found a {like}, expected a number, a text, a list or a mapping{cure}")


def override(file: JobFile, overrides: Sequence[str], origin: str = COMMAND_LINE) -> None:
    """Put ``key.path=value`` settings over a job, each value read as YAML.

    Of a key that is set twice the last counts.

    Args:
        file: the job.
        overrides: the settings.
        origin: of the settings, as error messages name it.

    Raises:
        JobError: one is malformed, or goes below a single value, or would replace a section of
            which an earlier one sets a key.
    """
    done: list[str] = []
    for setting in overrides:
        dotted, equals, text = setting.partition("=")
        if not equals or not all(dotted.split(".")):
            raise JobError(f"{origin}: {setting!r}: expected key.path=value")
        key: Key = tuple(dotted.split("."))
        value = _NodeReader(JobFile(origin, {}), numbered=False).value(text)
        undone = next((earlier for earlier in done if earlier.startswith(f"{dotted}.")), None)
        if undone is not None:
            raise JobError(
                f"{origin}: {dotted} would undo {undone}, said before it; say whole sections "
                "before their keys"
            )
        file.put(key, value, origin)
        done.append(dotted)


def as_override(key: str, value: Any) -> str:
    """``key.path=value`` as ``override`` reads it: 1.0e-05, [0.6, 0.3], {name: fedavg}."""
    text = as_yaml(plain(value), flow=True, width=float("inf"))
    return f"{key}={text.removesuffix('...' + chr(10)).strip()}"  # ... ends a single value


def as_shell_word(key: str, value: Any) -> str:
    """The same for a line of the shell: quoted where it must be."""
    return shlex.quote(as_override(key, value))


def plain(value: Any) -> Any:
    """A tree with lists for tuples, ready to be written as YAML or JSON."""
    if isinstance(value, Mapping):
        return {key: plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [plain(below) for below in value]
    return value


def tuples(value: Any) -> Any:
    """A tree with tuples for lists, and dicts of its own."""
    if isinstance(value, Mapping):
        return {key: tuples(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return tuple(tuples(below) for below in value)
    return value


class _Loader(yaml.SafeLoader):
    """PyYAML's, which takes 1e-3 for a number."""


class _Dumper(yaml.SafeDumper):
    """PyYAML's, which puts the text 1e-3 in quotes."""


for _either in (_Loader, _Dumper):
    _either.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


class _NodeReader:
    """Turns YAML's nodes into plain values, records their lines and refuses common mistakes."""

    def __init__(self, file: JobFile, *, numbered: bool = True) -> None:
        self._file, self._numbered, self._left = file, numbered, LARGEST_TREE
        self._scalars = _Loader("")

    def value(self, text: str) -> Any:
        try:
            node = yaml.compose(text, Loader=_Loader)
            return None if node is None else self._node(node, ())
        # An alias of a section that contains it ends in a RecursionError.
        except (yaml.YAMLError, ValueError, RecursionError) as e:
            mark = getattr(e, "problem_mark", None)
            where = self._line(mark) if mark else self._file.name
            problem = getattr(e, "problem", None) or str(e) or type(e).__name__
            raise JobError(f"{where}: is not valid YAML: {problem}") from e

    def _line(self, mark: yaml.Mark) -> str:
        return f"{self._file.name}:{mark.line + 1}" if self._numbered else self._file.name

    def _node(self, node: yaml.Node, key: Key) -> Any:
        self._left -= 1
        if self._left < 0:
            raise JobError(f"{self._file.name}: more than {LARGEST_TREE} values, aliases counted")
        self._file.lines.setdefault(key, self._line(node.start_mark))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._node(below, (*key, k)) for k, below in enumerate(node.value))
        line = self._line(node.start_mark)
        try:
            value = self._scalars.construct_object(node)
        except (LookupError, AttributeError) as e:  # an explicit tag such as !!int on text
            raise JobError(f"{line}: is not valid YAML: no {node.tag}: {node.value!r:.60}") from e
        if type(value) in (int, float) and _OTHER_BASE.match(node.value):
            raise JobError(
                f"{line}: YAML reads the number {node.value[:20]} as {value}; write it "
                "without leading zeros and colons"
            )
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            raise JobError(f"{line}: holds {value!r}, half a character: write it as UTF-8")
        return value

    def _mapping(self, node: yaml.MappingNode, key: Key) -> Tree:
        tree: Tree = {}
        for key_node, value_node in node.value:
            line = self._line(key_node.start_mark)
            name = self._node(key_node, ("",))
            if not isinstance(name, str):
                raise JobError(
                    f"{line}: the key {key_node.value!r:.60} is read by YAML as {name!r:.60}; "
                    "put it in quotes"
                )
            if name in tree:
                raise JobError(f"{line}: the key {name!r} stands twice in this section")
            self._file.lines[(*key, name)] = line
            tree[name] = self._node(value_node, (*key, name))
            if ":" in name and tree[name] is None:
                raise JobError(
                    f"{line}: YAML reads {name!r:.60} as a key without a value; put a space after "
                    "the colon"
                )
        return tree


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
