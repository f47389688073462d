"""Check paths as users write them."""

import os
from pathlib import Path


def require_plain(path: str) -> str:
    """The path, unless it has what only a shell would replace.

    Raises:
        ValueError: it is empty, has a zero byte, begins with ``~``, or has a ``$`` in the name of a
            folder or file that does not exist.
    """
    if not path:
        raise ValueError("found an empty path, as of a variable that is not set")
    if "\0" in path:
        raise ValueError(f"found {path!r}, which has a zero byte, as no path does")
    parts = Path(path).parts
    named = next((k for k, part in enumerate(parts, 1) if "$" in part), None)
    if path.startswith("~") or (named and not os.path.lexists(Path(*parts[:named]))):
        raise ValueError(f"found {path!r}, but only a shell replaces ~ and $: write the path out")
    return path
