"""Steps 2 to 4 of a start: agree on job and ranks, fetch files, build and try the components.

All are collective, and their results are the same on every rank.
"""

from dataclasses import replace
from functools import partial

from hpcfl.comm.failure import from_rank_0, raise_collectively
from hpcfl.comm.watched import WatchedComm
from hpcfl.data.fingerprints import Digests, fingerprints, require_alike
from hpcfl.engine.callbacks import Callback, Callbacks
from hpcfl.io.files import present
from hpcfl.job.callbacks import make_callbacks
from hpcfl.runs.job_file.resume_rules import input_places
from hpcfl.runs.job_file.settings import flatten
from hpcfl.runs.layout import RunDir
from hpcfl.start.checks.preflight import check_components
from hpcfl.start.checks.ranks import check_ranks
from hpcfl.start.components.build import build_components
from hpcfl.start.components.choose_executor import choose_executor, require_one_choice
from hpcfl.start.components.components import Components
from hpcfl.start.components.initial_model import fetch_model
from hpcfl.start.components.load_data import fetch_data, load_data_on_hosts
from hpcfl.start.copy_run import require_absent
from hpcfl.start.device import bfloat16_warning
from hpcfl.start.rank_layout import Ranks, discover_ranks
from hpcfl.start.request import StartRequest


def agree(request: StartRequest, comm: WatchedComm) -> tuple[StartRequest, Ranks]:
    """Collective: step 2, the same job on every rank, a device for each, and where to begin."""
    loaded, folder = request.loaded, request.folder
    if request.kept_files is not None:
        loaded = request.kept_files.agree(loaded, folder, comm)
    ranks = discover_ranks(loaded, folder.root, comm)
    ranks = ranks.with_notes(*check_ranks(ranks.infos, comm.backend))
    resumed = request.resume is not None or (
        request.continued and from_rank_0(comm, partial(_has_checkpoint, folder))
    )
    return replace(request, loaded=loaded, resumed=resumed), ranks


def _has_checkpoint(folder: RunDir) -> bool:
    """Whether the folder holds a checkpoint.

    Raises:
        JobError: there are checkpoints, but no job.
    """
    if folder.has_checkpoint:
        folder.require()
    return folder.has_checkpoint


def fetch_files(request: StartRequest, comm: WatchedComm) -> Callbacks:
    """Collective: step 3, bring the files that the run reads into place; the callbacks.

    Rank 0 alone writes and downloads, and it alone has callbacks.

    Raises:
        JobError, DataError: a file cannot be fetched or written, or a callback cannot be made.
    """
    loaded, folder, kept_files = request.loaded, request.folder, request.kept_files
    named: list[tuple[str, Callback]] = []
    with raise_collectively(comm):
        if comm.rank == 0:
            if request.resume is not None and request.resume.copied:
                # Not on other ranks: they would remember for a while that NFS has no such folder.
                require_absent(folder.root, request.resume)
            named = make_callbacks(loaded.job.callbacks, loaded.job.seed)
            named += [(type(callback).__qualname__, callback) for callback in request.callbacks]
            folder.refuse_foreign()
            if kept_files is not None:
                kept_files.write(folder)
            fetch_data(loaded)
            if not request.resumed:
                fetch_model(loaded)
    if kept_files is not None:
        kept_files.release()
    return Callbacks(named, loaded.job.seed)


def build(
    request: StartRequest, ranks: Ranks, comm: WatchedComm
) -> tuple[Components, Digests, Ranks]:
    """Collective: step 4, load the data, build the components, and try all of the user's classes.

    Returns:
        The components, the digests of the job's inputs, and the ranks with what there is to say.

    Raises:
        JobError, DataError: something in the job does not fit, or differs by rank.
    """
    loaded = request.loaded
    data = load_data_on_hosts(loaded, ranks.device, comm)
    notes, places = list(data.notes), input_places(flatten(loaded.tree))
    with raise_collectively(comm):
        components = build_components(
            loaded, ranks.device, resumed=request.resumed, dataset=data.dataset
        )
        inputs = fingerprints(loaded.job.data, data.dataset, places)
        notes += check_components(components, resumed=request.resumed)
    require_alike(inputs, places, comm)
    executor = components.job.executor
    if executor != "sequential":
        # Also of a start that ended before its first checkpoint: its job is in the folder.
        begun = from_rank_0(comm, partial(present, request.begun_run.job))
        with raise_collectively(comm):
            components, lines = choose_executor(components, request.begun_run if begun else None)
        if executor == "auto":
            require_one_choice(components, comm)
        notes += lines
    # Rank 0 alone writes to the terminal, so it alone measures.
    slow = bfloat16_warning(components.job, ranks.device) if comm.rank == 0 else None
    return components, inputs, ranks.with_notes(*notes, *filter(None, [slow]))
