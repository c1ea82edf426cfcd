"""Programs that want the kernel to kill the supervisor in their place."""

from __future__ import annotations

import pytest

from toolcell.sandbox import Limits, SandboxManager

from .conftest import BackendRow

pytestmark = [pytest.mark.anyio, pytest.mark.finding("A10")]

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

# Small processes, which hold as little as they can, and what belongs to no process.
FILL = f"""{LOWER}
if os.fork() == 0:
    os.execv("/bin/sh", ["sh", "-c", '''
        for folder in /dev/shm /tmp /work; do
            dd if=/dev/zero of=$folder/full bs=64k 2>/dev/null
        done
        sleep 100'''])
os.execv("/bin/sh", ["sh", "-c", "wait; sleep 100"])
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
    limits = Limits(memory_mb=32, disk_mb=32, wall_seconds=10)
    async with SandboxManager(backend.config(limits=limits)) as manager:
        result = await manager.run(FILL)
        after = await manager.run("'alive'")

    # A write may also fail for want of memory, and the program end by itself.
    assert result.status in ("out_of_memory", "exit")
    assert result.claimed is False
    assert after.value == "alive"
