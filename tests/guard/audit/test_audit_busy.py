"""Other processes that hold the audit file: who waits, and for how long."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import AuditError
from toolcell.guard import ActionGuard, AgentPolicy, AuditLog, verify_audit
from toolcell.guard.audit import file

from ...support.guard.builders import FREE, call, in_threads, spend
from ...support.polling import until

pytestmark = [pytest.mark.anyio, pytest.mark.promise("F4")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    with AuditLog(path) as made:
        yield made


@contextmanager
def held(path: Path) -> Iterator[Any]:
    """Hold the file as another writer does; return what lets go of it."""
    other = os.open(path, os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        yield lambda: fcntl.flock(other, fcntl.LOCK_UN)
    finally:
        os.close(other)


def guard_on(log: AuditLog) -> ActionGuard:
    return ActionGuard([AgentPolicy(agent_id="a", allow=["add"])], audit=log)


@pytest.mark.parametrize("name", ["add", "rm"])
async def test_the_loop_runs_while_others_hold_the_log(
    log: AuditLog, path: Path, name: str
) -> None:
    guard, ended = guard_on(log), []

    async def one() -> None:
        try:
            await spend(guard, call(name), FREE)
        except Exception as error:
            ended.append(type(error).__name__)
        else:
            ended.append("ok")

    with held(path) as let_go:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
            await until(lambda: log._file._waiting == 1)
            assert ended == []
            let_go()
    assert ended == [{"add": "ok", "rm": "GuardDeniedError"}[name]] * 3
    report = verify_audit(path)
    assert report.ok
    assert len(path.read_bytes().splitlines()) == (6 if name == "add" else 3)


async def test_an_outcome_waits_for_others_even_if_its_call_was_cancelled(
    log: AuditLog, path: Path
) -> None:
    guard = guard_on(log)
    with held(path) as let_go:
        let_go()
        async with anyio.create_task_group() as tasks:

            async def cancelled() -> None:
                with anyio.CancelScope() as scope:
                    async with guard.admit(call(), FREE):
                        other = os.open(path, os.O_RDWR)
                        fcntl.flock(other, fcntl.LOCK_EX)
                        tasks.start_soon(later, other)
                        scope.cancel()
                        await anyio.sleep_forever()

            async def later(other: int) -> None:
                await until(lambda: log._file._waiting == 1)
                os.close(other)

            tasks.start_soon(cancelled)
    assert b'"status":"cancelled"' in path.read_bytes()


async def test_who_waited_while_another_gave_up_is_refused_at_once(
    log: AuditLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "LOCK_SECONDS", 0.5)
    guard, refused = guard_on(log), []

    async def one() -> None:
        with pytest.raises(AuditError, match="held by another process"):
            await spend(guard, call(), FREE)
        refused.append(time.monotonic())

    with held(path):
        began = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(one)
    # 100 waits of half a second would be fifty.
    assert len(refused) == 100
    assert refused[-1] - began < 30
    assert await spend(guard, call(), FREE)


def test_others_write_while_a_head_waits_for_the_disk(
    log: AuditLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("first")
    fsync, seen = os.fsync, []

    def slow(fd: int) -> None:
        with AuditLog(path) as other:
            seen.append(other.append("second").seq)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    assert log.head().seq == 1
    assert seen == [2]
    assert verify_audit(path).ok


def test_many_threads_and_others_keep_one_chain(log: AuditLog, path: Path) -> None:
    guard, others = guard_on(log), AuditLog(path)

    async def both(number: int) -> None:
        for _ in range(50):
            if number % 2:
                await spend(guard, call(), FREE)
            else:
                others.append("other")

    in_threads(6, both)
    others.close()
    assert verify_audit(path).ok
    assert len(path.read_bytes().splitlines()) == 3 * 50 * 2 + 3 * 50
