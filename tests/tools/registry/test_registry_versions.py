"""Versions, hot reload, and taking a tool away while it runs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from toolcell.core import DuplicateToolError, ToolNotFoundError
from toolcell.tools import FunctionTool, Tool, ToolRegistry

pytestmark = pytest.mark.anyio


def named(name: str, version: str = "1.0.0", text: str = "Return it.") -> Tool:
    def call(number: int) -> int:
        return number

    return FunctionTool(call, name=name, version=version, description=text)


V1, V2, V10 = named("add"), named("add", "2.0.0"), named("add", "10.0.0")


def versioned() -> ToolRegistry:
    return ToolRegistry([V10, V1, V2])


@pytest.mark.promise("GR-06", "A-12")
def test_versions_stand_side_by_side() -> None:
    """A-12: several versions, compared as numbers."""
    registry = versioned()

    assert registry.get("add") is V10
    assert registry.get("add", "2.0.0") is V2
    assert registry.get("add", "3.0.0") is None
    assert registry.snapshot().versions("add") == ["1.0.0", "2.0.0", "10.0.0"]
    assert registry.list_tools() == ["add"]
    assert list(registry) == [V10]


@pytest.mark.promise("GR-06")
def test_another_version_has_to_be_welcome() -> None:
    registry = ToolRegistry([V1])

    with pytest.raises(DuplicateToolError, match="versions=True"):
        registry.register(V2)
    registry.register(V2, versions=True)
    assert registry.get("add") is V2


@pytest.mark.promise("GR-06")
def test_a_pin_holds_until_it_is_taken_off() -> None:
    registry = versioned()
    registry.pin("add", "1.0.0")
    before = registry.snapshot()
    registry.register(named("add", "11.0.0"), versions=True)

    assert registry.get("add") is V1
    assert list(registry) == [V1]
    registry.pin("add", None)
    assert registry.get("add") is registry.get("add", "11.0.0")
    assert before.get("add") is V1
    with pytest.raises(ToolNotFoundError):
        registry.pin("add", "3.0.0")


@pytest.mark.promise("GR-06")
def test_deprecated_versions_come_last() -> None:
    registry = versioned()
    registry.deprecate("add", "10.0.0", "wrong sums")

    assert registry.get("add") is V2
    assert registry.get("add", "10.0.0") is V10
    assert registry.snapshot().deprecation(V10) == "wrong sums"
    assert registry.snapshot().deprecation(V2) is None
    for version in ("1.0.0", "2.0.0"):
        registry.deprecate("add", version, "old")
    assert registry.get("add") is V10
    with pytest.raises(ToolNotFoundError):
        registry.deprecate("add", "3.0.0", "none")


def test_versions_leave_one_by_one_or_together() -> None:
    registry = versioned()
    registry.pin("add", "10.0.0")

    assert registry.unregister("add", "10.0.0") is V10
    assert registry.get("add") is V2
    assert registry.unregister("add", "10.0.0") is None
    assert registry.unregister("add") is V2
    assert registry.snapshot().versions("add") == []
    registry.register(V1)


@pytest.mark.promise("LT-21", "A-13")
def test_a_reload_is_one_step() -> None:
    old, kept, gone = named("a"), named("b"), named("c")
    registry = ToolRegistry([old, kept, gone])
    registry.pin("a", "1.0.0")
    registry.pin("c", "1.0.0")
    registry.deprecate("b", "1.0.0", "old")
    before = registry.snapshot()

    new = named("a", text="Return it, better.")
    change = registry.reload([new, named("b"), named("d")])

    assert (change.added, change.removed, change.changed) == (("d",), ("c",), ("a",))
    assert registry.list_tools() == ["a", "b", "d"]
    assert registry.get("a") is new
    assert list(before) == [old, kept, gone]
    assert registry.snapshot().revision == before.revision + 1
    assert registry.snapshot().deprecation(kept) == "old"


def test_a_reload_that_fails_changes_nothing() -> None:
    registry = ToolRegistry([V1])
    before = registry.snapshot()

    with pytest.raises(DuplicateToolError):
        registry.reload([named("a"), named("a")])
    assert registry.snapshot() is before


# --- in flight ----------------------------------------------------------------------


class Flight:
    """One running call, as an executor holds it."""

    def __init__(self, registry: ToolRegistry, subject: Tool) -> None:
        self.registry = registry
        self.subject = subject
        self.started = anyio.Event()
        self.finish = anyio.Event()
        self.ended = "not"

    async def run(self) -> None:
        with anyio.CancelScope() as scope:
            with self.registry.track_run(self.subject, scope.cancel):
                self.started.set()
                await self.finish.wait()
        self.ended = "cancelled" if scope.cancelled_caught else "finished"


async def in_flight(
    use: Callable[[ToolRegistry, list[Flight], Any], Any], count: int = 2
) -> list[Flight]:
    registry = ToolRegistry([V1])
    flights = [Flight(registry, V1) for _ in range(count)]
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for flight in flights:
                tasks.start_soon(flight.run)
                await flight.started.wait()
            await use(registry, flights, tasks)
    return flights


@pytest.mark.promise("LT-25")
async def test_unregistering_leaves_running_calls_alone() -> None:
    async def use(registry: ToolRegistry, flights: list[Flight], tasks: Any) -> None:
        assert registry.unregister("add") is V1
        for flight in flights:
            flight.finish.set()

    assert [each.ended for each in await in_flight(use)] == ["finished"] * 2


@pytest.mark.promise("LT-25")
async def test_retiring_drains() -> None:
    order: list[str] = []

    async def use(registry: ToolRegistry, flights: list[Flight], tasks: Any) -> None:
        begun = anyio.Event()

        async def retire() -> None:
            begun.set()
            assert await registry.retire("add") is V1
            order.append("retired")

        tasks.start_soon(retire)
        await begun.wait()
        await anyio.wait_all_tasks_blocked()
        assert registry.get("add") is None
        for flight in flights:
            assert order == []
            flight.finish.set()
            await anyio.wait_all_tasks_blocked()
        assert order == ["retired"]

    assert [each.ended for each in await in_flight(use)] == ["finished"] * 2


@pytest.mark.promise("LT-25")
async def test_retiring_cancels() -> None:
    async def use(registry: ToolRegistry, flights: list[Flight], tasks: Any) -> None:
        assert await registry.retire("add", cancel=True) is V1
        assert [each.ended for each in flights] == ["cancelled"] * 2

    await in_flight(use)


async def test_a_retired_tool_starts_no_more_not_even_from_a_snapshot() -> None:
    registry = ToolRegistry([V1])
    snapshot = registry.snapshot()
    assert await registry.retire("add") is V1
    assert await registry.retire("add") is None

    assert snapshot.get("add") is V1
    with pytest.raises(ToolNotFoundError, match="withdrawn"):
        with registry.track_run(V1, print):
            pass
    registry.register(V1)
    with registry.track_run(V1, print):
        pass


async def test_one_version_is_retired_alone() -> None:
    registry = versioned()
    with registry.track_run(V1, print):
        assert await registry.retire("add", "2.0.0") is V2
    assert registry.snapshot().versions("add") == ["1.0.0", "10.0.0"]


async def test_a_registry_forgets_retired_tools() -> None:
    registry = ToolRegistry([named("gone")])
    await registry.retire("gone")
    gc.collect()

    assert len(registry._runs.retired) == 0
    assert registry._runs.running == set()
