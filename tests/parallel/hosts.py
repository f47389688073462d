"""Two hosts on one machine: network namespaces, each with a name and a cable to one switch.

Addresses are of TEST-NET-3 (RFC 5737): nothing leaves the machine.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.parallel.background import kill

# Stands in for ssh in mpirun: options are left out, the host's address is the first word.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
number=${{1##*.}}; shift
host={name}$number
exec ip netns exec $host unshare --uts sh -c "hostname $host; exec sh -c \\"\\$0\\"" "$*"
"""


class Hosts:
    """A switch and so many hosts, 203.0.113.1 to 203.0.113.COUNT; a context manager."""

    def __init__(self, folder: Path, count: int) -> None:
        self._name = f"hf{os.getpid() % 100000}h"
        self._numbers = range(1, count + 1)
        self._switch = f"{self._name}sw"
        self._agent = folder / "agent"
        self._agent.write_text(AGENT.format(name=self._name))
        self._agent.chmod(0o755)

    def __enter__(self) -> "Hosts":
        ip("link", "add", self._switch, "type", "bridge")
        ip("link", "set", self._switch, "up")
        for number in self._numbers:
            host, cable = f"{self._name}{number}", f"{self._name}c{number}"
            ip("netns", "add", host)
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("link", "set", cable, "master", self._switch, "up")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "addr", "add", f"203.0.113.{number}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            for pid in self.processes(number):
                kill(pid)
            ip("link", "del", f"{self._name}c{number}")  # at once, unlike those of a namespace
            ip("netns", "del", f"{self._name}{number}")
        ip("link", "del", self._switch)

    @property
    def env(self) -> dict[str, str]:
        """What MPICH and Gloo must know of the network."""
        return {
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": "eth0",
            "GLOO_SOCKET_IFNAME": "eth0",
            "MASTER_ADDR": "203.0.113.1",
        }

    def mpirun(self, mpirun: str) -> list[str]:
        """The words that start one rank a host, from the first one."""
        addresses = ",".join(f"203.0.113.{number}" for number in self._numbers)
        inside = ["ip", "netns", "exec", f"{self._name}1", mpirun, "-launcher", "ssh"]
        ranks = ["-n", str(len(self._numbers))]
        return [*inside, "-launcher-exec", str(self._agent), "-hosts", addresses, *ranks]

    def cut(self, number: int) -> None:
        """Pull a host's cable."""
        ip("link", "set", f"{self._name}c{number}", "down")

    def processes(self, number: int, command: str = "") -> list[int]:
        """The processes of a host whose command line begins with ``command``."""
        pids = map(int, ip("netns", "pids", f"{self._name}{number}").split())
        return [pid for pid in pids if _command(pid).startswith(command)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:  # it has ended
        return ""


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def require() -> None:
    """Skip where hosts cannot be made."""
    missing = [name for name in ("ip", "unshare") if not shutil.which(name)]
    if missing or os.geteuid():
        pytest.skip(f"hosts need root, iproute2 and unshare; missing: {missing or 'root'}")
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "ip", "link", "add", "probe", "type", "bridge"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"this system lets nobody make hosts: {probe.stderr.strip()}")


def gone(hosts: Hosts, number: int, command: str, patience_s: float) -> None:
    """Wait until a host runs no such process."""
    deadline = time.monotonic() + patience_s
    while hosts.processes(number, command):
        assert time.monotonic() < deadline, f"host {number} still runs {command}"
        time.sleep(0.1)
