"""Programs that want the kernel to kill the supervisor in their place."""

from __future__ import annotations

import pytest

from toolcell.sandbox import Limits, SandboxManager

from ...conftest import BackendRow

pytestmark = [pytest.mark.anyio, pytest.mark.promise("A10")]

LOWER = """
import os
assert (os.getuid(), os.getppid()) == (10_001, 1), "not in a cell"
path = "/proc/self/oom_score_adj"
for score in range(-1000, 1001, 100):
    try:
        with open(path, "w") as file: file.write(str(score))
        break
    except OSError:
        pass
score = int(open(path).read())
"""

# A small process, which holds as little as it can; what it fills belongs to none. It
# never rests: whoever the kernel kills in its place, it asks for more.
FILL = f"""{LOWER}
os.execv("/bin/sh", ["sh", "-c", '''
    exec 2>/dev/null
    while :; do
        for folder in /dev/shm /tmp /work; do
            printf %s "$1" >>$folder/full
        done
    done''', "sh", "x" * 65_536])
"""


async def test_no_program_saves_itself(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    if backend.name != "subprocess":
        pytest.skip("an engine gives its containers a /proc that can be written to")
    async with sandbox.session() as session:
        first = await session.run(f"{LOWER}\nscore", fresh=True)
        again = await session.run(f"{LOWER}\nscore", fresh=True)

    assert [first.value, again.value] == [1000, 1000]


async def test_a_full_cell_is_out_of_memory_and_not_lost(backend: BackendRow) -> None:
    if not backend.held_by_kernel:
        pytest.skip("a watchdog holds memory there")
    limits = Limits(memory_mib=32, disk_mib=32, wall_seconds=60)
    async with SandboxManager(backend.config(limits=limits)) as manager:
        result = await manager.run(FILL)
        after = await manager.run("'alive'")

    assert (result.status, result.self_reported) == ("out_of_memory", False)
    if backend.name == "subprocess":
        # The program's own end: its cell has outlived it.
        assert result.signal == "SIGKILL"
    assert after.value == "alive"
