"""Becomes a command for which the kernel lacks layers of isolation.

python without_layer.py LAYER[,LAYER...] COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import ctypes
import os
import sys

from toolcell.sandbox.cell.kernel import linux, seccomp
from toolcell.sandbox.cell.kernel.bpf import (
    EINVAL,
    ENOSYS,
    EPERM,
    outside,
    rule,
    within,
)

NEW_LISTENER = 1 << 3
SIOCSIFFLAGS = 0x8914
CALLS = {
    "x86_64": {"seccomp": 317, "mount": 165, "unshare": 272, "sethostname": 170},
    "aarch64": {"seccomp": 277, "mount": 40, "unshare": 97, "sethostname": 161},
}
"""Numbers of the calls that cells may not make at all."""

ENOMEM, EACCES = 12, 13
KILL = 1 << 31
"""In place of an errno: no kernel knows this action, so it kills the process."""

LACKS = {
    "landlock": rule("landlock_create_ruleset", ENOSYS),
    # As AppArmor does on Ubuntu, which takes all rights from who enters a namespace of
    # users. The map is known by the length of its text.
    "user-maps": rule(
        "write", EPERM, within(2, len(f"{os.geteuid()} {os.geteuid()} 1"))
    ),
    "mounts": rule("mount", EACCES),
    "loopback": rule("ioctl", EPERM, within(1, SIOCSIFFLAGS)),
    "memory-to-unshare": rule("unshare", ENOMEM),
    "memory-to-mount": rule("mount", ENOMEM),
    "memory-in-cell": rule("ioctl", ENOMEM, within(1, SIOCSIFFLAGS)),
    "life-in-cell": rule("sethostname", KILL),
    "user-notification": rule("seccomp", EINVAL, outside(1, 0, mask=NEW_LISTENER)),
}

if __name__ == "__main__":
    machine = os.uname().machine
    program, _ = seccomp.of_rules(
        machine,
        tuple(LACKS[layer] for layer in sys.argv[1].split(",")),
        CALLS[machine],
    )
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    linux.prctl(22, 2, ctypes.addressof(program))
    os.execvp(sys.argv[2], sys.argv[2:])
