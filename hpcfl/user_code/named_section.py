"""Keys of a job that take a name alone, a section of ``kind`` and keys, or a dotted path.

``adamw`` stands for ``{kind: adamw}``, and ``mine.Lion`` for ``{kind: own, of: mine.Lion}``.
"""

from collections.abc import Callable, Collection
from typing import Any

OWN = "own"


def section_of(kinds: Collection[str], plain: str | None = None) -> Callable[[Any], Any]:
    """A function that makes a section of what a job has.

    Args:
        kinds: of sections; ``own`` among them is a class or function of the user's.
        plain: a name that has no section, if there is one.

    Raises:
        ValueError: by the function, for anything else; it names the kinds.
    """

    def section(given: Any) -> Any:
        if isinstance(given, str) and given != plain:
            given = {"kind": OWN, "of": given} if "." in given else {"kind": given}
        known = ", ".join(kind for kind in kinds if kind != OWN)
        names = known if plain is None else f"{plain}, {known}"
        if isinstance(given, dict) and "kind" not in given:
            named = "; say kind in place of name" if str(given.get("name")) in kinds else ""
            raise ValueError(
                f"found {', '.join(map(str, given)) or 'nothing'} and no kind, expected a kind "
                f"({known} or own) and its keys{named}"
            )
        if kind_of(given) not in {plain, *kinds}:
            found = given.get("kind") if isinstance(given, dict) else given
            # As a kind, a dotted path is in the wrong key.
            own = isinstance(found, str) and "." in found and OWN in kinds
            expected = f"{{kind: {OWN}, of: {found:.60}}}" if own else "a dotted path"
            raise ValueError(f"found {found!r:.60}, expected one of {names}, or {expected}")
        return given

    return section


def kind_of(given: Any) -> Any:
    """The kind of a section, or the name alone."""
    return given.get("kind") if isinstance(given, dict) else getattr(given, "kind", given)
