"""Preloaded where lives are forked: what torch loads at a first run is loaded once for all."""

import contextlib
import io
import tempfile
from pathlib import Path

import yaml

from hpcfl.bench.chaos.settings import JOB
from hpcfl.job.schema import load
from hpcfl.runner.start import start

with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
    job = Path(name) / "job.yaml"
    job.write_text(yaml.safe_dump({**JOB, "algorithm": {"name": "scaffold"}, "rounds": 1}))
    start(load(job), Path(name) / "run")
