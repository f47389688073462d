"""Find packages that are imported on use, and no file of the user's in their place."""

import sys
import sysconfig
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from hpcfl.errors import JobError


def installed(package: str) -> bool:
    """Whether Python finds the package, and nothing of the user's that has its name."""
    return find_spec(package) is not None and _shadow(package) is None


def refuse_shadow(package: str) -> None:
    """Refuse a file or folder that Python would import in place of a package.

    Python searches the current directory (by ``python -m``, or in a notebook), the folder of a
    script and PYTHONPATH first.  A folder without code is found, too, where the package is not
    installed, and is then imported without an error.

    Raises:
        JobError: there is one.
    """
    if shadow := _shadow(package):
        raise JobError(
            f"{shadow}: Python finds it in place of the package {package}; rename it, or take its "
            "folder off Python's path"
        )


def require(package: str, use: str, extra: str) -> None:
    """Refuse a use of a package that is not installed, or hidden by a file of the user's.

    Args:
        package: as Python imports it.
        use: what needs it, for the message.
        extra: of hpcfl, which brings it.

    Raises:
        JobError: see ``refuse_shadow``; or it is not installed.
    """
    refuse_shadow(package)
    if find_spec(package) is None:
        raise JobError(
            f"{use} needs the package {package}, which is not installed; "
            f"pip install 'hpcfl[{extra}]'"
        )


def _shadow(package: str) -> Path | None:
    """What Python finds by the name of a package, if no installation has put it there."""
    spec = find_spec(package)
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    if folders and not spec.origin:  # of a folder without code
        return Path(next(iter(folders)))
    if not spec.origin:  # made in memory
        return None
    place = Path(spec.origin).parent if folders else Path(spec.origin)
    folder = place.parent
    if folder.resolve() not in _searched_first():
        return None  # installed as usual, or by a line in a .pth file
    found = distributions(path=[str(folder)])
    return None if any(_installs(each, package, place.name) for each in found) else place


def pip_lists(package: str, place: Path) -> bool:
    """Whether pip has left a list of the files of a package beside it, in whatever folder.

    The ``.egg-info`` of a checkout has no such list.

    Args:
        package: its name, or that of a module.
        place: its folder, or the module's file.
    """
    return any(
        one.read_text("RECORD") is not None and _installs(one, package, place.name)
        for one in distributions(path=[str(place.parent)])
    )


def _installs(distribution: Distribution, package: str, file: str) -> bool:
    """Whether a distribution brings the package, or the file that is found by its name."""
    if distribution.files is not None:
        return any(path.parts[0] in (package, file) for path in distribution.files)
    # As Debian and `setup.py install` leave it, without a list of files.
    names = (distribution.read_text("top_level.txt") or distribution.metadata["Name"] or "").split()
    return package in [name.replace("-", "_") for name in names]


def _searched_first() -> set[Path]:
    """The folders that Python searches before its own library."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    found: set[Path] = set()
    for folder in (Path(entry).resolve() for entry in sys.path):  # "" is the current directory
        if folder == library:
            break
        found.add(folder)
    return found
