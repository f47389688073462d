"""Rank 0 reads each file of a run once in a start, at the resume and at every commit."""

import json
import subprocess
import sys
from collections import Counter

from hpcfl.runs.job_file import yaml_file
from tests.rundirs import starts

# The hook sees every open of the process, also those by os.open; HDF5 opens segments by itself.
COUNT = """
import json, os, sys
from pathlib import Path

root, counted, *words = sys.argv[1:]
opened, held = [], []

def note(event, arguments):
    if event != "open" or held:
        return
    path, _, flags = arguments
    reads = flags & (os.O_ACCMODE | os.O_DIRECTORY) == os.O_RDONLY
    if reads and isinstance(path, str) and os.path.isfile(path):
        path = os.path.abspath(path)
        if path.startswith(root + os.sep):
            opened.append(os.path.relpath(path, root))

from hpcfl.__main__ import main
from hpcfl.io.live_files import HeldPath
hold = HeldPath.open.__func__

def unnoted(cls, path):
    held.append(path)
    try:
        return hold(cls, path)
    finally:
        held.pop()

HeldPath.open = classmethod(unnoted)  # it keeps a file open and reads nothing of it
sys.addaudithook(note)
try:
    sys.argv = ["hpcfl", *words]
    main()
except SystemExit as end:
    code = end.code
else:
    code = 0
Path(counted).write_text(json.dumps([code, opened]))
"""

TWICE = {
    "job.yaml",  # before the ranks are connected, which needs the job, and under the lock
    "history.jsonl",  # under the lock, and at the end, which may be days later
    "log.jsonl",  # under the lock, and at the end, to see whether the run diverged
    "stores",  # to verify all states before anything is changed, and to go on with them
}


def reads(root, counted, *words):
    """How often one process of ``hpcfl`` reads each file of a run."""
    texts = [str(word) for word in (root, counted, *words)]
    done = subprocess.run([sys.executable, "-c", COUNT, *texts], capture_output=True, text=True)
    code, opened = json.loads(counted.read_text())
    assert code in (0, None), done.stderr
    return Counter(name for name in opened if name != "lock")


def test_every_file_is_read_once(job, tmp_path, hpcfl):
    """Also the best model; several checkpoints are kept, and three more are committed."""
    out = tmp_path / "run"
    words = ("algorithm={name: fedhbm}", "checkpoint={every: 1, keep: 3}", "evaluate.best=true")
    assert hpcfl("run", job, *words, "--out", out).code == 0
    kept = [path.name for path in sorted((out / "checkpoints").iterdir())]
    found = reads(out, tmp_path / "counted.json", "resume", out, "rounds=9")
    more = {name: n for name, n in found.items() if n > 1 + (name.split("/")[0] in TWICE)}
    assert more == {}
    files = ("manifest.json", "server.safetensors", "best.safetensors", "rows-0000.npz")
    assert {f"checkpoints/{folder}/{file}" for folder in kept for file in files} <= {*found}
    # Of its own checkpoints rank 0 reads what other threads and ranks have written; their checksums
    # go into the manifest, which it writes itself.
    own = [path for path in sorted((out / "checkpoints").iterdir()) if path.name not in kept]
    assert len(own) == 3
    assert all(found[f"checkpoints/{path.name}/rows-0000.npz"] == 1 for path in own)
    assert not any(found[f"checkpoints/{path.name}/manifest.json"] for path in own)
    assert len(starts(out)) == 2


def test_an_override_is_parsed_once(job, tmp_path, hpcfl, monkeypatch):
    out, read, value = tmp_path / "run", [], yaml_file._NodeReader.value
    assert hpcfl("run", job, "--out", out).code == 0

    def noted(self, text):
        read.append(text)
        return value(self, text)

    monkeypatch.setattr(yaml_file._NodeReader, "value", noted)
    assert hpcfl("resume", out, "rounds=009e0").code != 0
    assert hpcfl("resume", out, "rounds=+7").code == 0
    assert (read.count("009e0"), read.count("+7")) == (1, 1)
