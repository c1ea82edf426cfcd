"""The process that makes cells of namespaces, and the host's end of it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.sandbox import Limits, Mount, SandboxManager
from toolcell.sandbox.backends import launcher
from toolcell.sandbox.backends.cell_bundle import interpreter
from toolcell.sandbox.machine import host_cgroups
from toolcell.sandbox.scheduling import pool
from toolcell.sandbox.spi import early_launcher

from ...conftest import SUBPROCESS
from ...support.polling import until
from ...support.process_tree import alive, children

pytestmark = pytest.mark.anyio


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
    """Begin a run and cancel it at its launch; the launcher answers all the same."""
    send = socket.send_fds
    asked: list[tuple[Any, Any, list[int]]] = []

    def send_later(control: Any, message: Any, fds: list[int]) -> int:
        # Asked for now, it might be answered before the run is cancelled.
        asked.append((control, message, [os.dup(fd) for fd in fds]))
        scope.cancel()
        return 1

    with anyio.CancelScope() as scope, monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", send_later)
        await manager.run("1", limits=Limits(pids=40))
    [(control, message, fds)] = asked
    send(control, message, fds)
    for fd in fds:
        os.close(fd)
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

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
                # The launcher hears of nothing, so it never answers.
                monkeypatch.setattr(socket, "send_fds", lambda *_: 1)
                for _ in range(3):
                    tasks.start_soon(run, manager)
                await anyio.wait_all_tasks_blocked()

    assert said == ["the backend was closed"] + ["the backend is closed"] * 2


def receive_without_room(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let descriptors arrive while the process may open no more, so many times."""
    receive, limit = socket.recv_fds, resource.getrlimit(resource.RLIMIT_NOFILE)
    left = times

    def receive_nothing(*arguments: Any) -> Any:
        nonlocal left
        if not left:
            return receive(*arguments)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
        try:
            received = receive(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        left -= 1
        return received

    monkeypatch.setattr(socket, "recv_fds", receive_nothing)


async def test_a_want_of_descriptors_costs_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
        receive_without_room(monkeypatch, 1)
        with pytest.raises(SandboxUnavailableError, match="no descriptor left"):
            await manager.run("1")
        result = await manager.run("6 * 7")

    assert result.value == 42


async def test_the_pool_outlives_a_want_of_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_RETRY_SECONDS", 0.01)
    async with SandboxManager(SUBPROCESS.config(pool=1)) as manager:
        receive_without_room(monkeypatch, 3)
        await until(lambda: manager.pool_stats().ready == 1)
        result = await manager.run("6 * 7")

    assert result.value == 42


async def test_an_interpreter_that_reads_nothing_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launcher, "_START_SECONDS", 0.1)
    monkeypatch.setattr(launcher, "_END_SECONDS", 0.1)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    with pytest.raises(SandboxUnavailableError, match="did not start in time"):
        async with SandboxManager(SUBPROCESS.config(python=str(python))):
            pass


@pytest.mark.parametrize("limits", [None, Limits(pids=40)])
async def test_a_cell_that_died_before_it_was_asked_for_is_made_anew(
    limits: Limits | None,
) -> None:
    async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
        parent = launcher_of(manager)._process.pid
        await until(lambda: bool(children(parent)))
        [ahead] = children(parent)
        os.kill(ahead, signal.SIGKILL)
        await until(lambda: not alive(ahead))
        result = await manager.run("6 * 7", limits=limits)

    assert result.value == 42


async def test_a_cell_is_made_anew_while_the_dead_one_keeps_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first process of a confined cell is not the one that takes a channel."""
    send = socket.send_fds
    config = SUBPROCESS.config(pool=0, strongest_isolation="confined")
    async with SandboxManager(config) as manager:
        parent = launcher_of(manager)._process.pid
        [first] = children(parent)
        [supervisor] = children(first)

        def send_and_go_on(*arguments: Any) -> int:
            sent = send(*arguments)
            os.kill(parent, signal.SIGCONT)
            return sent

        # The request is there when the launcher learns that the process has died.
        os.kill(parent, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not alive(first))
        monkeypatch.setattr(socket, "send_fds", send_and_go_on)
        result = await manager.run("6 * 7")

    assert result.value == 42


async def test_a_launcher_that_was_started_early_is_used_once() -> None:
    before = children(os.getpid())
    with early_launcher():
        [started] = children(os.getpid()).keys() - before.keys()
        async with SandboxManager(SUBPROCESS.config()) as manager:
            assert launcher_of(manager)._process.pid == started
            assert (await manager.run("6 * 7")).value == 42
            async with SandboxManager(SUBPROCESS.config()) as other:
                assert launcher_of(other)._process.pid != started
        assert not alive(started)


def test_an_interpreter_of_a_virtual_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    python = tmp_path / "bin/python"
    python.symlink_to(interpreter())
    with pytest.raises(ConfigError, match=f"name its interpreter, {interpreter()}"):
        SUBPROCESS.config(python=str(python))
    SUBPROCESS.config(python=interpreter())


async def test_a_launcher_that_nobody_uses_ends() -> None:
    if interpreter() == os.path.realpath("/usr/bin/python3"):
        pytest.skip("this machine has no second interpreter")
    other = SUBPROCESS.config(python="/usr/bin/python3")
    before = children(os.getpid())
    with early_launcher():
        [started] = children(os.getpid()).keys() - before.keys()
        async with SandboxManager(other) as manager:
            assert launcher_of(manager)._process.pid != started
        assert alive(started)

    assert not alive(started)


async def test_a_launcher_that_was_set_up_early_has_the_cell_of_the_first_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SUBPROCESS.config()
    before = children(os.getpid())
    cells = cells_of_launchers(monkeypatch)
    with early_launcher() as early:
        early.set_up(config)
        [started] = children(os.getpid()).keys() - before.keys()
        # It is ready once it has the cell; children before that try what it may do.
        assert early._started is not None
        await anyio.wait_readable(early._started.control)
        [ahead] = children(started)
        async with SandboxManager(config) as manager:
            assert launcher_of(manager)._process.pid == started
            assert (await manager.run("6 * 7")).value == 42
            assert cells[0] == ahead
            await until(lambda: not alive(ahead))


def cells_of_launchers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the first process of each cell that is handed over."""
    cells: list[int] = []
    launch = launcher.LauncherProcess.launch

    async def noted(process: Any, kind: dict[str, Any]) -> Any:
        made = await launch(process, kind)
        cells.append(made[2])
        return made

    monkeypatch.setattr(launcher.LauncherProcess, "launch", noted)
    return cells


@pytest.mark.namespaces
async def test_a_launcher_is_used_for_no_other_set_up_than_its_own() -> None:
    config = SUBPROCESS.config()
    before, earlier_groups = children(os.getpid()), groups()
    with early_launcher() as early:
        early.set_up(config)
        [started] = children(os.getpid()).keys() - before.keys()
        own_groups = groups()
        assert own_groups > earlier_groups
        async with SandboxManager(SUBPROCESS.config(work_dir="/elsewhere")) as manager:
            assert launcher_of(manager)._process.pid != started
            found = (await manager.run("import os; os.getcwd()")).value
        assert groups() == own_groups

    assert found == "/elsewhere"
    assert not alive(started)
    assert groups() == earlier_groups


async def test_a_set_up_that_cannot_be_ends_the_launcher(tmp_path: Path) -> None:
    before, earlier_groups = children(os.getpid()), groups()
    mount = Mount(source=str(tmp_path), target="/data")
    config = SUBPROCESS.config(mounts=[mount])
    tmp_path.rmdir()
    with early_launcher() as early:
        with pytest.raises(SandboxUnavailableError, match="/data"):
            early.set_up(config)
        assert children(os.getpid()).keys() == before.keys()
        assert groups() == earlier_groups
        with pytest.raises(SandboxUnavailableError, match="/data"):
            async with SandboxManager(config):
                pass


def groups() -> set[Path]:
    """Return the control groups that this process made."""
    return {
        path
        for place in set(host_cgroups.parents().values())
        for path in Path(place).glob(f"{host_cgroups.own_name()}-*")
    }
