"""One life of a run: from a job or a run directory to the end, a stop or an error."""

import json
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from hpcfl.assemble import Parts, assemble, client_weights, device_of
from hpcfl.checkpoint import Checkpoint, committed, fingerprint, read_server, save, sweep
from hpcfl.comm.base import Comm
from hpcfl.comm.launch import connect, detect
from hpcfl.comm.together import group, together
from hpcfl.engine import Record, Run, play
from hpcfl.errors import RankError, StoreError
from hpcfl.evaluation import Evaluation
from hpcfl.job import Loaded, load
from hpcfl.placement import owners
from hpcfl.progress import Progress, open_progress
from hpcfl.rundir import RunDir
from hpcfl.runlog import RunLog, cut
from hpcfl.schema import traffic
from hpcfl.signals import Signals
from hpcfl.store import rows as row_tables
from hpcfl.store.base import ClientStore
from hpcfl.types import Vector
