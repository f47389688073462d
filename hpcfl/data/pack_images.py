"""Pack encoded images into one HDF5 file, by several processes.

A process shrinks a chunk of the list at a time.  This one writes the images in the order of the
list, whichever process shrank them, into a file without a name, and then into the packed file,
whose arrays need to know their sizes.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from typing import IO, Any, NamedTuple

import numpy as np

from hpcfl.data.download import Track
from hpcfl.data.encoded_images import DAMAGED, reason, shrunk
from hpcfl.data.hdf5 import encoded
from hpcfl.data.image_listing import (
    Fault,
    Listing,
    Photo,
    present_origin,
    read_image,
    report_faults,
)
from hpcfl.data.packed import FORMAT
from hpcfl.data.prepared_file import new_prepared_file, preparation_errors
from hpcfl.errors import DataError

CHUNK = 512  # images that a process shrinks at a time
PIECE = 1 << 24  # bytes that are copied at a time


class _Chunk(NamedTuple):
    """Consecutive images of a split, which one process shrinks."""

    photos: Sequence[Photo]
    side: int
    root: Path


def pack(
    path: Path, listing: Listing, *, side: int, workers: int, allowed: int, track: Track
) -> None:
    """Write the packed file ``path``.

    Images that are missing or damaged are listed in ``path`` with the suffix ``.missing.txt``.

    Args:
        path: the HDF5 file, in the root of the images.
        listing: the images.
        side: pixels of the shorter side that larger images are scaled to.
        workers: processes.
        allowed: number of images that may be missing or damaged; they are left out.
        track: shows progress.

    Raises:
        DataError: more images are; or the file cannot be written.
        DiskError: the disk is full or fails.
    """
    splits = {"train": listing.train, "test": listing.test}
    photos = [photo for its in splits.values() for photo in its]
    chunks = [
        _Chunk(photos[k : k + CHUNK], side, path.parent) for k in range(0, len(photos), CHUNK)
    ]
    with preparation_errors(path), TemporaryFile(dir=path.parent) as shrunk_images:
        origin = np.bytes_(present_origin(listing, path.parent).encode())
        sizes, faults = [], list[Fault]()
        with _mapping(workers) as map_:
            for found in track(map_(_shrink, chunks), f"packing {path.stem}", len(chunks)):
                for image in found:
                    if isinstance(image, Fault):
                        faults.append(image)
                        image = b""
                    shrunk_images.write(image)
                    sizes.append(len(image))
        report_faults(path, faults, len(photos), allowed)
        shrunk_images.seek(0)
        about = {"format": FORMAT, "classes": listing.classes, "side": side}
        room = _room(listing, photos, sizes)
        with new_prepared_file(path, room, **about, origin=origin) as file:
            begin = 0
            for split, its in splits.items():
                if its:
                    own = sizes[begin : begin + len(its)]
                    _write_split(file.create_group(split), its, own, shrunk_images)
                begin += len(its)
            _name_clients(file, listing, {fault.photo for fault in faults})


@contextmanager
def _mapping(workers: int) -> Iterator[Callable[..., Any]]:
    """``map`` over so many processes; the results come in order."""
    if workers == 1:
        yield map
        return
    # A fork of this process would be unsafe, as torch may have threads; the fork server has none.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(workers, context, _follow_parent)
    try:
        yield pool.map
    except BrokenProcessPool as error:
        raise DataError(
            f"one of {workers} processes was killed, for lack of memory perhaps; call again with "
            "fewer workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """End this process when its parent ends, even by a kill, and not by Ctrl-C before that.

    Otherwise it would wait for work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _shrink(chunk: _Chunk) -> list[bytes | Fault]:
    found: list[bytes | Fault] = []
    for photo in chunk.photos:
        try:
            found.append(shrunk(read_image(chunk.root / photo.path), chunk.side))
        except DAMAGED as error:
            found.append(Fault(photo, reason(error)))
    return found


def _room(listing: Listing, photos: Sequence[Photo], sizes: Sequence[int]) -> int:
    """Bytes of all arrays of the packed file, at most: images, names, offsets and labels."""
    longest = max((len(os.fsencode(photo.path)) for photo in photos), default=0)
    longest_client = max((len(os.fsencode(name)) for name, _ in listing.clients), default=0)
    return sum(sizes) + len(photos) * (longest + 24) + len(listing.clients) * (longest_client + 8)


def _write_split(
    group: Any, photos: Sequence[Photo], sizes: Sequence[int], images: IO[bytes]
) -> None:
    """Write a split's group without its clients; images without bytes are left out.

    Args:
        group: of the file.
        photos: of the split.
        sizes: bytes of each image.
        images: a file that is read on by so many bytes.
    """
    present = [k for k, size in enumerate(sizes) if size]
    if not present:
        raise DataError(f"{group.file.filename}: no image of {group.name} is left")
    offsets = np.cumsum([0, *(sizes[k] for k in present)])
    group["offsets"] = offsets
    group["labels"] = np.array([photos[k].label for k in present], dtype=np.int64)
    group["names"] = encoded(photos[k].path for k in present)
    group.attrs["missing"] = len(photos) - len(present)
    content = group.create_dataset("bytes", (offsets[-1],), np.uint8)
    for begin in range(0, len(content), PIECE):
        piece = images.read(min(PIECE, len(content) - begin))
        content[begin : begin + len(piece)] = np.frombuffer(piece, np.uint8)


def _name_clients(file: Any, listing: Listing, lost: set[Photo]) -> None:
    """Write the rows and names of the clients; a client without any image is left out."""
    counts = {name: sum(photo not in lost for photo in photos) for name, photos in listing.clients}
    kept = [name for name, count in counts.items() if count]
    file["train/clients"] = np.cumsum([0, *(counts[name] for name in kept)])
    file["train/client_names"] = encoded(kept)
    if listing.owners:
        numbers = {name: number for number, name in enumerate(kept)}
        whose = zip(listing.owners, listing.test, strict=True)
        owners = [numbers.get(name, -1) for name, photo in whose if photo not in lost]
        file["test/clients"] = np.array(owners, dtype=np.int64)
