"""Damages one kind of HDF5 file many times; run by test_files.py in a process of its own."""

import resource
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.hostile import files
from tests.hostile.damage import damaged, ends_well, many

EXAMPLES = 60
GUARD_S = 60  # of the processor's time for each of them: a loop would never end


def main() -> None:
    case, root = getattr(files, sys.argv[1]), Path(sys.argv[2])
    path, read = case(root)
    read(0)  # as it is
    whole = path.read_bytes()

    @many(EXAMPLES)
    @given(st.data())
    def play(data):
        content = data.draw(damaged(whole))
        path.unlink(missing_ok=True)  # the pages of the one before may still be mapped
        path.write_bytes(content)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(
            resource.RLIMIT_CPU, (int(spent.ru_utime + spent.ru_stime) + GUARD_S, most)
        )
        ends_well(lambda: read(0))

    play()


if __name__ == "__main__":
    main()
