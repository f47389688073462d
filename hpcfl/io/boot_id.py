"""Tell hosts apart that have the same name, such as "localhost"."""

from contextlib import suppress
from pathlib import Path


def boot_id() -> str:
    """What Linux drew at random when this host started; "" on a system without it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
