"""Trains one round in the process that others are forked from, so that torch is fully loaded."""

import contextlib
import io
import tempfile
from pathlib import Path

import yaml

import hpcfl.comm.torch_distributed  # noqa: F401  of runs on several ranks
from hpcfl.job.load import load
from hpcfl.start.start import start
from hpcfl.tools.selftest import JOB

with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
    job = Path(name) / "job.yaml"
    job.write_text(yaml.safe_dump({**JOB, "algorithm": {"name": "scaffold"}, "rounds": 1}))
    start(load(job), Path(name) / "run")
