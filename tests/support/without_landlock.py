"""Becomes a command for which the kernel has no Landlock.

python without_landlock.py COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import ctypes
import os
import sys

from toolcell.sandbox.cell.kernel import linux, seccomp
from toolcell.sandbox.cell.kernel.bpf import ENOSYS, rule

if __name__ == "__main__":
    program, _ = seccomp.of_rules(
        os.uname().machine, (rule("landlock_create_ruleset", ENOSYS),), {}
    )
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    linux.prctl(22, 2, ctypes.addressof(program))
    os.execvp(sys.argv[1], sys.argv[1:])
