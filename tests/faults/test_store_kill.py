"""A process killed at any instant leaves its last two checkpoints whole, bit for bit."""

import random
import signal
import time
from pathlib import Path

import pytest
import store_writer
import torch
from tracing import traced

from hpcfl.store.reader import Reader
from hpcfl.store.row_table import Table
from tests.forked import CONTEXT

KILLS = 12


def check(folder: Path) -> int:
    """Compare the kept checkpoints with what was staged; return the last committed round."""
    done = store_writer.committed(folder)
    for round in done[-store_writer.KEEP :]:
        table = Table.load(folder / str(round), folder / "stores")
        with Reader(table, store_writer.SCHEMA) as reader:
            for client in range(store_writer.CLIENTS):
                found = reader.read(client)
                expected = store_writer.expected(client, round)
                if expected is None:
                    assert found is None
                else:
                    assert found is not None
                    assert all(map(torch.equal, found, expected))
    return done[-1] if done else -1


def test_kills_at_random_instants(tmp_path):
    """Every life goes on from what the kill of the one before left."""
    draw = random.Random(0)
    last = -1
    for kill in range(KILLS):
        pipe, end = CONTEXT.Pipe(duplex=False)
        child = CONTEXT.Process(
            target=store_writer.write_and_tell, args=(tmp_path, f"life{kill}", end)
        )
        child.start()
        end.close()
        for _ in range(draw.randint(1, 6)):
            told = pipe.recv()
        time.sleep(draw.random() * 0.01)
        child.kill()
        child.join()
        pipe.close()
        reached = check(tmp_path)
        assert reached >= told > last
        last = reached
    schema, stores = store_writer.SCHEMA, tmp_path / "stores"
    own, shared = (
        sum(path.stat().st_size for path in folder.glob("*.h5")) // part.bytes
        for folder, part in ((stores, schema.own), (stores / "shared", schema.shared))
    )
    # Not a little more after every life.
    assert own < 8 * store_writer.CLIENTS
    assert shared < 5 * store_writer.CLIENTS


@pytest.mark.parametrize(
    ("call", "nth"),
    [("pwrite64", 3), ("pwrite64", 30), ("pwrite64", 101), ("fsync", 2), ("fsync", 11)],
)
def test_kills_exactly_at_a_system_call(strace, tmp_path, call, nth):
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}"]
    for life in ("a", "b"):  # the second starts from what the first left
        before = check(tmp_path)
        end, pipe = CONTEXT.Pipe(duplex=False)
        child = CONTEXT.Process(target=store_writer.write_when_told, args=(tmp_path, life, end))
        child.start()
        with traced(strace, child.pid, "-o", "/dev/null", *inject):
            pipe.send("go")
            child.join()
        assert child.exitcode == -signal.SIGKILL
        assert check(tmp_path) >= before
