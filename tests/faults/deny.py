"""A disk that fails: the kernel refuses system calls of this process, by a filter of its own.

No root and no tracer is needed, and what is not refused is as quick as ever.  See seccomp(2) and
the kernel's filter.rst for the little programs, linux/audit.h and unistd.h for the numbers.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from pathlib import Path

import pytest

# x86-64 and arm64; None where that has no such call.
CALLS = {
    "write": [(1, 64), (20, 66)],
    "pwrite": [(18, 68), (296, 70), (328, 287)],
    "sync": [(74, 82), (75, 83)],
    "rename": [(82, None), (264, 38), (316, 276)],
    "mkdir": [(83, None), (258, 34)],
    "remove": [(84, None), (87, None), (263, 35)],
    "size": [(76, 45), (77, 46), (285, 47)],
    "open": [(2, None), (257, 56)],
}
MACHINE = {"x86_64": 0, "aarch64": 1}
SECCOMP = (317, 277)
LOAD, EQUAL, GREATER, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NUMBER, FIRST, SECOND, THIRD = 0, 16, 24, 32  # offsets of a call's number and arguments
TRACKS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR


def machine() -> int:
    """Which column of CALLS holds here; skips the test where none does."""
    if sys.platform != "linux" or platform.machine() not in MACHINE:
        pytest.skip("knows the system calls of Linux on x86-64 and arm64")
    return MACHINE[platform.machine()]


def program(kind: str, error: int) -> bytes:
    """A filter: calls of the kind fail, but what is said on standard output and error."""
    code = b""
    for numbers in CALLS[kind]:
        number = numbers[machine()]
        if number is None:
            continue
        test = b""
        if kind == "write":
            test = _step(LOAD, FIRST) + _step(GREATER, 2, otherwise=1)
        if kind == "open":
            flags = SECOND if number == 2 else THIRD
            test = _step(LOAD, flags) + _step(ANY_BIT, WRITING, otherwise=1)
        code += _step(LOAD, NUMBER) + _step(EQUAL, number, otherwise=len(test) // 8 + 1)
        code += test + _step(RETURN, ERRNO | error)
    return code + _step(RETURN, ALLOW)


def _step(operation: int, value: int, *, otherwise: int = 0) -> bytes:
    """One instruction; ``otherwise`` is how many are skipped if a condition is not met."""
    return struct.pack("=HBBI", operation, 0, otherwise, value)


def deny(kind: str, error: int) -> None:
    """From now on, in all threads."""
    code = program(kind, error)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, by_filter, all_threads = 38, 1, 1
    failed = libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.syscall(
        SECCOMP[machine()], by_filter, all_threads, head
    )
    if failed:
        raise OSError(ctypes.get_errno(), "no filters of system calls here")


def deny_from(root: Path, nth: int, kind: str, error: str) -> None:
    """From the moment on when Python touches something below ``root`` for the n-th time."""
    left = nth

    def hook(event: str, arguments: tuple) -> None:
        nonlocal left
        if left and event in TRACKS and str(arguments[0]).startswith(str(root)):
            left -= 1
            if not left:
                deny(kind, getattr(errno, error))

    sys.addaudithook(hook)
