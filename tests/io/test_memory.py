"""Memory: what is needed is compared with what is free, and what was freed is returned."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcfl.errors import DataError, JobError
from hpcfl.io import memory
from hpcfl.io.files import refuse_large_file
from hpcfl.io.memory import refuse_large_job, resident_memory, return_freed_memory

FREE = 2_000_000
REFUSED = {
    "job": (
        lambda needed: refuse_large_job("data.dim", "data of 9 clients", needed),
        JobError,
        r"^data\.dim: data of 9 clients needs 2\.1 MB of memory, found 2\.0 MB free; lower it, or",
    ),
    "file": (
        lambda needed: refuse_large_file(Path("a.npz"), needed),
        DataError,
        r"^a\.npz: declares 2\.1 MB of content, 2\.0 MB of memory are free; it is damaged, or",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_larger_than_the_free_memory(monkeypatch, kind):
    refuse, error, said = REFUSED[kind]
    monkeypatch.setattr(memory, "free_memory", lambda: FREE)
    refuse(FREE)
    with pytest.raises(error, match=said):
        refuse(FREE + 100_000)
    monkeypatch.setattr(memory, "free_memory", lambda: None)  # the system does not say
    refuse(FREE + 100_000)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_small_needs_no_look_at_the_machine(monkeypatch, kind):
    monkeypatch.setattr(memory, "free_memory", None)
    REFUSED[kind][0](1 << 20)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc can")
def test_freed_memory_is_returned():
    """300 MB in blocks that are too small to be mapped, every second one is freed."""
    blocks = [np.ones(100_000, dtype=np.uint8) for _ in range(3000)]
    full = resident_memory()
    kept = blocks[::2]
    del blocks
    return_freed_memory()
    assert full - resident_memory() > 100e6
    assert len(kept) == 1500


def test_arrow_returns_its_memory_where_it_was_imported(monkeypatch):
    returned = []
    pool = SimpleNamespace(release_unused=lambda: returned.append(True))
    arrow = SimpleNamespace(default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    return_freed_memory()
    assert returned == [True]
    monkeypatch.delitem(sys.modules, "pyarrow")
    return_freed_memory()
    assert "pyarrow" not in sys.modules
