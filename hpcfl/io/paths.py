"""Check paths as users write them."""


def require_plain(path: str) -> str:
    """The path, unless it has what only a shell would replace.

    Raises:
        ValueError: it is empty, begins with ``~``, or has a ``$`` or a zero byte.
    """
    if not path:
        raise ValueError("found an empty path, as of a variable that is not set")
    if "\0" in path:
        raise ValueError(f"found {path!r}, which has a zero byte, as no path does")
    if path.startswith("~") or "$" in path:
        raise ValueError(f"found {path!r}, but only a shell replaces ~ and $: write the path out")
    return path
