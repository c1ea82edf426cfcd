"""The process that makes cells of namespaces, and the host's end of it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import Limits, SandboxManager

from .conftest import SUBPROCESS

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)


def launcher_of(manager: SandboxManager) -> Any:
    backend: Any = manager._backend
    return backend._launcher


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def descriptor_ahead(sock: socket.socket) -> int:
    """Return a copy of the descriptor that will be received next."""
    room = socket.CMSG_LEN(4)
    _, [(_, _, packed)], _, _ = sock.recvmsg(65_536, room, socket.MSG_PEEK)
    return int.from_bytes(packed, sys.byteorder)


def collected(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return False


async def cancel_at_its_launch(
    manager: SandboxManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begin a run, and cancel it when the launcher has been asked for its cell."""
    with anyio.CancelScope() as scope, monkeypatch.context() as patch:
        send = socket.send_fds

        def send_and_cancel(*arguments: Any) -> int:
            scope.cancel()
            return send(*arguments)

        patch.setattr(socket, "send_fds", send_and_cancel)
        await manager.run("1", limits=Limits(pids=40))
    assert scope.cancelled_caught


async def test_a_run_that_is_cancelled_at_its_launch_harms_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
        control = launcher_of(manager)._control
        before = descriptors()
        await cancel_at_its_launch(manager, monkeypatch)
        # Its cell ends without a host, before anybody reads the answer.
        await anyio.wait_readable(control)
        pidfd = descriptor_ahead(control)
        await until(lambda: collected(pidfd))
        os.close(pidfd)
        values = [(await manager.run(f"{number}")).value for number in range(3)]
        await until(lambda: descriptors() == before)

    assert values == [0, 1, 2]


async def test_runs_that_wait_for_a_cell_hear_that_the_manager_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    async def run(manager: SandboxManager) -> None:
        with pytest.raises(SandboxUnavailableError) as caught:
            await manager.run("1", limits=Limits(pids=40))
        said.append(caught.value.message)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
                # The launcher hears of nothing, so it never answers.
                monkeypatch.setattr(socket, "send_fds", lambda *_: 1)
                for _ in range(3):
                    tasks.start_soon(run, manager)
                await anyio.wait_all_tasks_blocked()

    assert said == ["the backend was closed"] + ["the backend is closed"] * 2
