"""What a kernel starts as root for others: `modprobe`, and the handler of cores.

    python tests/support/kernel/helpers.py [UID]

Run as root on a throw-away kernel: it prints, as JSON, what programs in a cell of this
user made the kernel start, and what the same programs did outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from toolcell.sandbox import SandboxConfig, run

LOG = Path("/tmp/started")
HELPERS = {
    "/tmp/modprobe": "/proc/sys/kernel/modprobe",
    "/tmp/handler": "/proc/sys/kernel/core_pattern",
}
SOCKETS = """\
import fcntl
import socket

for family in (2, 10):
    for kind in range(1, 7):
        for protocol in (0, 33, 115, 132, 136, 255, 262):
            try:
                socket.socket(family, kind, protocol).close()
            except OSError:
                pass
for family in range(1, 46):
    try:
        socket.socketpair(family, socket.SOCK_STREAM)
    except OSError:
        pass
with socket.socket() as stream:
    for request in (0x8940, 0x8941, 0x8980, 0x8982, 0x89A0):
        try:
            fcntl.ioctl(stream, request, bytes(40))
        except OSError:
            pass
"""
CRASHES = """\
import os
import subprocess

subprocess.run(["sh", "-c", "kill -SEGV $$"])
subprocess.run(["sh", "-c", "ulimit -c 0; kill -SEGV $$"])
os.abort()
"""


def install_helpers() -> None:
    for path, setting in HELPERS.items():
        Path(path).write_text(f'#!/bin/sh\necho "{path} $*" >>{LOG}\n')
        Path(path).chmod(0o755)
        pipe = "|" if path == "/tmp/handler" else ""
        Path(setting).write_text(pipe + path)
    # So that who crashes has not ended before its handler has.
    Path("/proc/sys/kernel/core_pipe_limit").write_text("16")


def started() -> list[str]:
    """Return what has been started since this was asked last."""
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    LOG.write_text("")
    return [line.partition(" ")[0] for line in lines]


def in_a_cell(code: str) -> str:
    return run(code, config=SandboxConfig(backend="subprocess")).status


def outside(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def become(uid: int) -> None:
    LOG.touch()
    LOG.chmod(0o666)
    # The interpreter may be there.
    Path("/root").chmod(0o755)
    os.environ["HOME"] = "/tmp"
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main(arguments: list[str]) -> None:
    install_helpers()
    if arguments:
        become(int(arguments[0]))
    said = {}
    for name, code in (("sockets", SOCKETS), ("crashes", CRASHES)):
        status = in_a_cell(code)
        said[name] = {"status": status, "cell": started()}
        outside(code)
        said[name]["outside"] = sorted(set(started()))
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
