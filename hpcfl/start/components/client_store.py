"""Make the store of client states that a job asks for."""

from collections.abc import Sequence
from pathlib import Path

import torch

from hpcfl.job.schema import Store
from hpcfl.store.base import ClientStore
from hpcfl.store.device import DeviceStore
from hpcfl.store.footprint import footprint
from hpcfl.store.hdf5 import Hdf5Store
from hpcfl.store.null import NullStore
from hpcfl.store.schema import StateSchema
from hpcfl.store.scratch import ScratchStore, scratch_folder
from hpcfl.store.shared import SharedStore, folder_of_shared

GIB = 1 << 30
DEVICE_SHARE = 0.1  # of a GPU's free memory for client states; training needs the rest


def make_client_store(
    config: Store,
    state_schema: StateSchema,
    root: Path,
    rank: int,
    session_id: str,
    clients: Sequence[int],
    device: torch.device,
) -> ClientStore:
    """Make the store of the states of ``clients``.

    Args:
        config: the job's section.
        state_schema: the shape of a state.
        root: the folder of the run's stores.
        rank: whose clients they are.
        session_id: of this start of the run, see ``RankSession``.
        clients: those of the rank.
        device: of the states that are saved; a GPU keeps some of them in its memory.
    """
    if not state_schema.fields:
        return NullStore(rank)
    cache = int(config.cache_gib * GIB)

    def build(folder: Path, schema: StateSchema, cache: int) -> ClientStore:
        row_per_round, disk = not schema.own.fields, config.dir
        # With a scratch disk, only the store there has a cache: the rounds read and write it.
        cache_of_permanent = cache if disk is None else 0
        permanent = Hdf5Store(
            folder,
            rank,
            session_id,
            clients,
            schema,
            cache_of_permanent,
            row_per_round=row_per_round,
        )
        if disk is None:
            return permanent
        own = scratch_folder(Path(disk), root.parent, rank)
        scratch = Hdf5Store(
            own, rank, session_id, clients, schema, cache, row_per_round=row_per_round
        )
        return ScratchStore(scratch, permanent, own)

    if state_schema.own.fields and state_schema.shared.fields:
        # The states' own parts are mostly small: they get the cache they need, at most half of it.
        own = min(cache // 2, len(clients) * footprint(state_schema.own))
        shared = build(folder_of_shared(root), state_schema.shared, cache - own)
        store: ClientStore = SharedStore(state_schema, build(root, state_schema.own, own), shared)
    else:
        store = build(root, state_schema, cache)
    if device.type != "cuda":
        return store
    free, _ = torch.cuda.mem_get_info(device)
    # Not more than the host has room for, so that a checkpoint need not wait for the disk.
    return DeviceStore(store, state_schema, min(cache, int(DEVICE_SHARE * free)))
