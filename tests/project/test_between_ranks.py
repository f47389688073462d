"""What ranks send each other is no pickle, and no wait for them holds Python's lock."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hpcfl"

# A pattern, where it may stand, and why nowhere else.
RULES = {
    "pickles": (
        r"^\s*(import|from) +\w*pickle\w*\b",
        {"data/sources/cifar.py", "user_code/pickled.py"},
        "a pickle executes what it says: only CIFAR's own and the user's objects are read",
    ),
    "unpickles": (
        r"weights_only=False",
        {"user_code/find_object.py"},
        "only a file of the folder kept is executed",
    ),
    "objects of torch.distributed": (
        r"\b\w+_object(_list)?\(.*group|dist\.\w+_object(_list)?\(",
        set(),
        "these collectives pickle",
    ),
    "objects of MPI": (
        r"world\.(i?s?send|i?recv|sendrecv|bcast|(all)?gather|scatter|alltoall|(all)?reduce)\(",
        set(),
        "mpi4py's methods in lower case pickle; those with a capital send buffers",
    ),
    "numpy by force": (
        r"numpy\(force=",
        set(),
        "it waits for the GPU, and with NCCL for the other ranks, with Python's lock held, which "
        "the watchdog's thread needs; cpu() waits without",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_no_module_breaks_the_rule(name):
    pattern, allowed, why = RULES[name]
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text(), re.MULTILINE)
    }
    assert found == allowed, why


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("pickles", "import pickle"),
        ("pickles", "    from cloudpickle import dumps"),
        ("unpickles", "torch.load(path, weights_only=False)"),
        ("objects of torch.distributed", "dist.all_gather_object(texts, text)"),
        ("objects of torch.distributed", "dist.broadcast_object_list(texts)"),
        ("objects of MPI", "self._world.bcast(text)"),
        ("objects of MPI", "world.allgather(text)"),
        ("numpy by force", "out.numpy(force=True)"),
    ],
)
def test_the_rules_find_what_they_forbid(name, line):
    assert re.search(RULES[name][0], line, re.MULTILINE)
