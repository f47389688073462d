"""Memory that a job or a file needs is compared with what is free, before it is taken."""

from pathlib import Path

import pytest

from hpcfl.errors import DataError, JobError
from hpcfl.io import memory
from hpcfl.io.files import refuse_large_file
from hpcfl.io.memory import refuse_large_job

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
