"""Becomes a command for which the kernel makes namespaces of users, and maps no user.

So does AppArmor on Ubuntu: it takes all rights from who enters one. The filter knows
the map by the length of its text.

python without_user_maps.py COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import ctypes
import os
import sys

from toolcell.sandbox.cell.kernel import linux, seccomp
from toolcell.sandbox.cell.kernel.bpf import EPERM, rule, within

if __name__ == "__main__":
    size = len(f"{os.geteuid()} {os.geteuid()} 1")
    program, _ = seccomp.of_rules(
        os.uname().machine, (rule("write", EPERM, within(2, size)),), {}
    )
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    linux.prctl(22, 2, ctypes.addressof(program))
    os.execvp(sys.argv[1], sys.argv[1:])
