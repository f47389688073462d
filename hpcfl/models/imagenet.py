"""The ImageNet weights that torchvision publishes, by file name, in torch's own cache.

A file is named after the model and the first eight digits of its SHA-256, so the name in a model's
source determines the weights, whichever version of torchvision is installed, if any.
"""

from hashlib import file_digest
from pathlib import Path

import torch

from hpcfl.errors import DiskError, JobError, as_disk_error
from hpcfl.io.regular import open_binary

ADDRESS = "https://download.pytorch.org/models/"


def cache_path(name: str) -> Path:
    """The path of the file in torch's cache, where torchvision looks for it too."""
    return Path(torch.hub.get_dir()) / "checkpoints" / name


def fetch(name: str) -> None:
    """Download the file unless it is there, and check it.

    Raises:
        JobError: it cannot be downloaded, or is damaged.
        DiskError: the disk is full or fails.
    """
    path = cache_path(name)
    by_hand = (
        f"download {ADDRESS}{name} elsewhere, put it into {path.parent} or any folder FOLDER, then "
        f"say model.init=FOLDER/{name}"
    )
    mark = path.stem.rpartition("-")[2]
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(ADDRESS + name, str(path), mark, progress=False)
        except (OSError, RuntimeError) as error:
            message = f"model.init: torchvision: {name} could not be downloaded: {error}; "
            if as_disk_error(error):
                advice = f"make room in {path.parent} or repair the disk"
                raise DiskError(message + advice) from error
            raise JobError(message + by_hand) from error
    with open_binary(path) as file:
        found = file_digest(file, "sha256").hexdigest()
    if not found.startswith(mark):
        raise JobError(
            f"model.init: torchvision: {path}: is damaged, its SHA-256 begins with "
            f"{found[: len(mark)]}; remove it, or {by_hand}"
        )
