"""toolcell in a gVisor container: what Linux keeps from programs is kept there too.

`.ci/places` starts the container. Elsewhere there is nothing to see.
"""

from __future__ import annotations

import pytest

from toolcell.sandbox import Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.cell.kernel import gvisor

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.namespaces,
    pytest.mark.skipif(not gvisor.is_this_kernel(), reason="this is not gVisor"),
]
ATTACKS = """
import ctypes, errno, os, signal, sys

def attempt(act):
    try:
        act()
        return "open"
    except OSError as error:
        return errno.errorcode[error.errno]

libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)

above = os.getppid()
{
    "write to its interpreter": attempt(lambda: open("/proc/self/exe", "r+b").close()),
    "kill its supervisor": attempt(lambda: os.kill(above, signal.SIGKILL)),
    "kill the first process": attempt(lambda: os.kill(1, signal.SIGKILL)),
    "what the supervisor has open": attempt(lambda: os.listdir("/proc/1/fd")),
    "a System V segment": attempt(lambda: call("shmget", 0, 4096, 0o1600)),
    "a POSIX queue": attempt(lambda: call("mq_open", b"/q", os.O_CREAT, 0o600, None)),
    "mount": attempt(lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
    "trace its parent": attempt(lambda: call("ptrace", 16, above, 0, 0)),
}
"""


async def test_what_only_linux_keeps_from_programs_is_closed() -> None:
    async with SandboxManager(SandboxConfig(backend="subprocess")) as sandbox:
        attacks = (await sandbox.run(ATTACKS)).value
        after = await sandbox.run("6 * 7")

    assert isinstance(attacks, dict)
    assert [name for name, answer in attacks.items() if answer == "open"] == []
    assert after.value == 42


async def test_memory_is_held_without_the_cgroups_that_hold_nothing() -> None:
    limits = Limits(memory_mib=64)
    async with SandboxManager(SandboxConfig(backend="subprocess")) as sandbox:
        result = await sandbox.run("x = b'x' * (200 << 20)", limits=limits)

    assert result.status == "out_of_memory"
    assert result.isolation is not None
    assert result.isolation.level == "namespaces"
