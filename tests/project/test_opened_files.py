"""The package opens files by their names through ``hpcfl.io.regular`` alone.

A FIFO in the place of a file would be waited for, and a device has no end.  A library that opens a
name itself is called in a function that checks the name first, or gives it an open file.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hpcfl"
METHODS = {"open", "read_bytes", "read_text", "write_bytes", "write_text"}  # of a path
LIBRARIES = {
    *("np.load", "np.memmap", "np.fromfile", "np.loadtxt", "np.genfromtxt", "torch.load"),
    *("h5py.File", "Image.open", "gzip.open", "bz2.open", "lzma.open", "tarfile.open"),
    *("ZipFile", "zipfile.ZipFile", "is_zipfile", "load_file", "safe_open", "FileIO"),
    *("copyfile", "shutil.copyfile", "shutil.copy"),
}
CHECKS = {
    *("open_fd", "open_binary", "open_text", "open_write", "open_append", "check_regular"),
    *("BytesIO", "_saved"),  # the latter calls check_regular for each file of a folder
}
KERNEL = "a file of the kernel, not of a user"
OWN = "a file of the installed package"
NEW = "a file that it makes under a new name"
ALLOWED = {
    "__main__.py": "the null device, in the place of a closed descriptor",
    "tools/cite.py": OWN,
    "tools/init.py": OWN,
    "cli/main.py": "the null device, in the place of a closed pipe",
    "tools/selftest.py": NEW,
    "io/heartbeat.py:claim_report": NEW,
    "comm/watchdog.py": "heartbeats, not a path",
    "tools/callbacks/tensorboard.py": NEW,
    "data/image_listing.py:report_faults": "it has just been removed",
    "data/sources/digits.py": "a file of scikit-learn",
    "io/atomic.py": f"{NEW}, and folders",
    "io/boot_id.py": KERNEL,
    "io/cgroups.py": KERNEL,
    "io/live_files.py": "a file or folder of a live run, without waiting",
    "io/memory.py": KERNEL,
    "io/progress.py": "the null device",
    "io/regular.py": "it is the place",
    "tools/list_algorithms.py": OWN,
    "runs/job_file/packaged.py": OWN,
    "models/weights.py": "_read checks it before it calls what loads it",
    "io/packages.py": "the metadata of an installed distribution",
    "tools/report/published/__init__.py": OWN,
    "start/environment.py": KERNEL,
    "start/rank_layout.py": KERNEL,
    "tools/sweep/process.py:command_lines": KERNEL,
}
"""Modules, or FILE:FUNCTION, that open files otherwise, and why they may."""


def opened(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Function, line and call of every place that opens a file by its name."""
    for function, body in functions(tree):
        calls = [node for node in body if isinstance(node, ast.Call)]
        names = [ast.unparse(call.func) for call in calls]
        checked = any(name.rpartition(".")[2] in CHECKS for name in names)
        for call, name in zip(calls, names, strict=True):
            owner, _, last = name.rpartition(".")
            library = name in LIBRARIES or (owner and last in {"read_table", "load_from_disk"})
            of_a_class = owner == "cls" or (
                owner.rpartition(".")[2][:1].isupper() and not owner.endswith(")")
            )
            by_name = name in ("open", "io.open", "os.open") or (
                last in METHODS and owner and not library and not of_a_class
            )
            if by_name or (library and not checked):
                yield function, call.lineno, name


def functions(tree: ast.AST) -> Iterator[tuple[str, list[ast.AST]]]:
    """Functions, by their names, with the nodes of each; of nested ones those of the outer one."""
    waiting, outside = [tree], []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            yield node.name, list(ast.walk(node))
        else:
            outside.append(node)
            waiting.extend(ast.iter_child_nodes(node))
    yield "", outside


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("open(path)", ["open"]),
        ("path.open('rb')", ["path.open"]),
        ("Path(name).read_text()", ["Path(name).read_text"]),
        ("self.path.open()", ["self.path.open"]),
        ("os.open(path, os.O_RDONLY)", ["os.open"]),
        ("np.load(path)", ["np.load"]),
        ("with open_binary(path) as file: np.load(file)", []),
        ("check_regular(path); h5py.File(path)", []),
        ("check_regular(path); path.read_bytes()", ["path.read_bytes"]),
        ("Image.open(BytesIO(content))", []),
        ("Segment.open(path, 'r')", []),
        ("json.loads(read_text(path))", []),
    ],
)
def test_what_counts(text, found):
    assert [name for _, _, name in opened(ast.parse(f"def f():\n  {text}"))] == found


def test_files_are_opened_in_one_place():
    needed, wrong = set(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for function, line, call in opened(ast.parse(path.read_text("utf-8"))):
            places = {module, f"{module}:{function}"} & ALLOWED.keys()
            needed |= places
            if not places:
                wrong.append(f"hpcfl/{module}:{line}: {call}: use hpcfl.io.regular")
    assert not wrong, "\n".join(wrong)
    assert needed == ALLOWED.keys(), "these open no file otherwise any more: remove them"
