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
    cache, pinned = int(config.cache_gib * GIB), device.type == "cuda"

    def build(folder: Path, schema: StateSchema, cache: int) -> ClientStore:
        def store(at: Path, cache: int) -> Hdf5Store:
            return Hdf5Store(
                at,
                rank,
                session_id,
                clients,
                schema,
                cache,
                row_per_round=not schema.own.fields,
                pinned=pinned,
            )

        if config.dir is None:
            return store(folder, cache)
        # Only the store on the scratch disk has a cache: the rounds read and write it.
        permanent = store(folder, 0)
        own = scratch_folder(Path(config.dir), root.parent, rank)
        return ScratchStore(store(own, cache), permanent, own)

    if state_schema.own.fields and state_schema.shared.fields:
        # The states' own parts are mostly small: they get the cache they need, at most half of it.
        own = min(cache // 2, len(clients) * footprint(state_schema.own, pinned=pinned))
        shared = build(folder_of_shared(root), state_schema.shared, cache - own)
        made: ClientStore = SharedStore(state_schema, build(root, state_schema.own, own), shared)
    else:
        made = build(root, state_schema, cache)
    if not pinned:
        return made
    free, _ = torch.cuda.mem_get_info(device)
    # Not more than the host has room for, so that a checkpoint need not wait for the disk.
    return DeviceStore(made, state_schema, min(cache, int(DEVICE_SHARE * free)))
