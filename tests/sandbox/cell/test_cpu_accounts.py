"""CPU time where no cgroup counts it."""

from __future__ import annotations

import pytest

from toolcell.sandbox import Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.machine import host_cgroups

pytestmark = pytest.mark.anyio

BURN = """
import os, signal, time
assert os.getcwd().endswith("/work"), "not in a cell"
{setting}
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    pid = os.fork()
    if pid == 0:
        burn({each})
        os._exit(0)
    os.write(1, b".")
    {after}
"""
IGNORED = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
# Its children burn while it waits for nothing of theirs.
UNWAITED = """
    while True:
        try: os.kill(pid, 0)
        except OSError: break
        time.sleep(0.001)
"""


@pytest.fixture
def no_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> dict[str, str]:
        raise OSError("no cgroups here")

    monkeypatch.setattr(host_cgroups, "create", refuse)


@pytest.mark.promise("A9")
@pytest.mark.parametrize("each", [0.003, 0.03])
async def test_children_that_nobody_waits_for_are_charged(
    no_cgroups: None, each: float
) -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=200)
    code = BURN.format(setting=IGNORED, seconds=15, each=each, after=UNWAITED)
    config = SandboxConfig(backend="subprocess", limits=limits)

    async with SandboxManager(config) as manager:
        result = await manager.run(code)

    assert (result.status, result.usage.enforced_by["cpus"]) == (
        "cpu_limit",
        "affinity",
    )
    assert result.usage.cpu_ms >= 900
    # What they burnt in all: it was noticed while they did.
    assert len(result.stdout_bytes) * each < 6


async def test_children_that_are_waited_for_are_charged_once(no_cgroups: None) -> None:
    # Where cells have the host's user, others take from the room for processes.
    limits = Limits(cpu_seconds=2, wall_seconds=200, pids=512)
    code = (
        BURN.format(setting="", seconds=0, each=0, after="")
        + """
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        burn(0.05)
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.005)
"""
    )
    config = SandboxConfig(backend="subprocess", limits=limits)
    async with SandboxManager(config) as manager:
        result = await manager.run(code)

    assert result.status == "ok", result.stderr
    assert 900 <= result.usage.cpu_ms < 2000
