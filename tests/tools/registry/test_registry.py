"""The registry: what is in it, who may see it, and what a failed look-up tells."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from toolcell.core import ConfigError, DuplicateToolError, ToolError, ToolNotFoundError
from toolcell.tools import FunctionTool, JSONSchemaTool, Tool, ToolRegistry, tool


def named(name: str, **options: Any) -> FunctionTool[[int], int]:
    def call(number: int) -> int:
        """Return a number."""
        return number

    return FunctionTool(call, name=name, **options)


def alike(first: Tool, name: str) -> Tool:
    """Return a tool of another name that shares the schema, for crowds."""
    each = copy.copy(first)
    vars(each)["name"] = name
    return each


@pytest.mark.promise("LT-26", "LT-28", "LT-30", "GR-01", "GR-04", "GR-05")
def test_tools_are_found_by_name_in_the_order_they_came() -> None:
    """LT-26, LT-28, LT-30, GR-01, GR-04, GR-05."""
    add, search = named("add"), named("search")
    registry = ToolRegistry([search, add])

    assert registry.get("add") is add
    assert registry.get("none") is None
    assert registry.get_or_raise("search") is search
    assert registry.list_tools() == ["search", "add"]
    assert list(registry) == [search, add]
    assert (len(registry), "add" in registry, "none" in registry) == (2, True, False)
    assert 3 not in registry


@pytest.mark.promise("GR-02", "GR-26", "GR-27", "LT-22")
def test_functions_become_tools_when_they_are_registered() -> None:
    """GR-02, GR-26, GR-27, LT-22: name, description and schema are inferred."""
    registry = ToolRegistry()

    def plus(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    made = registry.register(plus, version="1.2.0", tags={"math"})
    sync = registry.register(lambda: 1, name="one", description="Return 1.")

    assert (made.name, made.description, made.version) == ("plus", "Add.", "1.2.0")
    assert made.parameters["properties"]["b"] == {"default": 1, "type": "integer"}
    assert sync.parameters["properties"] == {}
    assert registry.list_tools() == ["plus", "one"]


def test_annotations_may_name_what_the_registering_function_defines() -> None:
    class Point(BaseModel):
        x: int

    def double(point: Point) -> int:
        """Return twice x."""
        return 2 * point.x

    schema = ToolRegistry().register(double).parameters

    assert "Point" in str(schema)


@pytest.mark.promise("GR-03", "X-08")
def test_the_decorator_of_a_registry_registers() -> None:
    registry = ToolRegistry()

    @registry.tool
    def one() -> int:
        return 1

    @registry.tool(name="deux", description="Two.")
    def two() -> int:
        return 2

    assert (one(), two()) == (1, 2)
    assert registry.list_tools() == ["one", "deux"]


def test_a_tool_brings_its_own_options() -> None:
    with pytest.raises(ConfigError, match="a tool already"):
        ToolRegistry().register(named("add"), description="Other.")


@pytest.mark.promise("GA-04", "GA-05", "GA-12", "A-10", "RA-03")
def test_registries_share_nothing() -> None:
    """GA-04, GA-05, GA-12, A-10, RA-03: no module state, no decoration side effect."""
    first, second = ToolRegistry(), ToolRegistry()
    first.register(named("add"))

    assert first.list_tools() == ["add"]
    assert second.list_tools() == []


@pytest.mark.promise("E-123", "LT-23", "X-02", "RO-03", "RA-02")
def test_a_name_is_taken_once() -> None:
    """LT-23, X-02, RO-03, RA-02: a typed error that names both sources."""
    trusted = named("pay")
    registry = ToolRegistry([trusted])
    for intruder in (named("pay"), named("pay", version="9.0.0")):
        with pytest.raises(DuplicateToolError) as caught:
            registry.register(intruder)
        assert isinstance(caught.value, ToolError)
        assert str(caught.value).count(intruder.source) >= 2

    assert registry.get("pay") is trusted
    assert list(registry) == [trusted]


@pytest.mark.promise("E-112")
@pytest.mark.parametrize("name", ["math_add", "Math.Add", "MATH_ADD", "math.add"])
@pytest.mark.promise("R57")
def test_names_that_look_alike_are_refused(name: str) -> None:
    registry = ToolRegistry([named("math.add")])

    for version in ("1.0.0", "2.0.0"):
        with pytest.raises(DuplicateToolError):
            registry.register(named(name, version=version), versions=name != "math.add")
    assert registry.list_tools() == ["math.add"]


def test_a_provider_spelling_finds_the_tool() -> None:
    made = named("math.add")
    registry = ToolRegistry([made])

    assert registry.get("math_add") is made
    assert registry.get("MATH_ADD") is None
    assert registry.get("Math.Add") is None


@pytest.mark.promise("X-02")
def test_replacing_is_said_out_loud() -> None:
    old, new = named("add"), named("add")
    registry = ToolRegistry([old])
    registry.register(new, replace=True)

    assert registry.get("add") is new
    assert len(registry) == 1


@pytest.mark.promise("LT-24")
def test_many_or_none() -> None:
    registry = ToolRegistry([named("c")])
    before = registry.snapshot()

    with pytest.raises(DuplicateToolError):
        registry.register_many([named("a"), named("b"), named("c")])
    with pytest.raises(ConfigError):
        registry.register_many([named("a"), named("b", examples=[{}])])
    assert registry.snapshot() is before

    made = registry.register_many([named("a"), named("b")])
    assert [each.name for each in made] == ["a", "b"]
    assert registry.list_tools() == ["c", "a", "b"]
    assert registry.snapshot().revision == before.revision + 1


@pytest.mark.promise("LT-25")
def test_unregister_returns_what_was_removed() -> None:
    made = named("add")
    registry = ToolRegistry([made])

    assert registry.unregister("add") is made
    assert registry.unregister("add") is None
    assert registry.get("add") is None
    registry.register(made)
    assert registry.get("add") is made


@pytest.mark.promise("LT-21", "A-13")
def test_a_snapshot_never_changes() -> None:
    """LT-21, A-13: a batch works on what was there when it began."""
    add = named("add")
    registry = ToolRegistry([add])
    snapshot = registry.snapshot()
    assert snapshot is registry.snapshot()

    registry.register(named("more"))
    registry.register(named("add"), replace=True)
    registry.deprecate("more", "1.0.0", "old")
    registry.unregister("more")

    assert list(snapshot) == [add]
    assert snapshot.get("more") is None
    assert registry.snapshot().revision == snapshot.revision + 4


def test_writers_in_threads_lose_nothing() -> None:
    registry = ToolRegistry()
    first = named("first")
    first.check_definition()
    parts = [[alike(first, f"t{part}_{n}") for n in range(80)] for part in range(4)]
    start = threading.Barrier(4)

    def write(part: list[Tool]) -> None:
        start.wait()
        for added in part:
            registry.register(added)

    threads = [threading.Thread(target=write, args=(part,)) for part in parts]
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(often)

    assert len(registry) == 320
    assert registry.snapshot().revision == 321


# --- who may see what ------------------------------------------------------------


RIGHTS = {"reader": {"read_file", "read_mail"}, "writer": {"write_file"}}


def visible(agent_id: str | None, subject: Tool) -> bool:
    return subject.name in RIGHTS.get(agent_id or "", set())


@pytest.fixture
def guarded() -> ToolRegistry:
    names = ["read_file", "read_mail", "write_file", "read_fill"]
    return ToolRegistry([named(name) for name in names], visible=visible)


@pytest.mark.promise("LT-29")
def test_an_agent_sees_what_it_may_call(guarded: ToolRegistry) -> None:
    view = guarded.snapshot().for_agent("reader")

    assert view.list_tools() == ["read_file", "read_mail"]
    assert (len(view), "read_file" in view, "write_file" in view) == (2, True, False)
    assert view.get("write_file") is None
    assert view.versions("write_file") == []
    assert guarded.list_tools() == ["read_file", "read_mail", "write_file", "read_fill"]


@pytest.mark.parametrize("agent_id", [None, "", "stranger"])
def test_a_stranger_sees_nothing(guarded: ToolRegistry, agent_id: str | None) -> None:
    view = guarded.snapshot().for_agent(agent_id)

    assert (list(view), view.get("read_file")) == ([], None)


@pytest.mark.promise("E-85", "LT-27", "GR-04", "GR-30")
def test_a_failed_look_up_tells_only_what_the_agent_has(guarded: ToolRegistry) -> None:
    """GR-04, GR-30: the error is typed and keeps the other names to itself."""
    view = guarded.snapshot().for_agent("reader")
    for name in ("read_fil", "write_file", "__class__", "nothing", "x" * 10_000):
        with pytest.raises(ToolNotFoundError) as caught:
            view.get_or_raise(name)
        told = str(caught.value) + str(caught.value.details)
        assert "write_file" not in told
        assert "read_fill" not in told
        assert "x" * 65 not in told

    with pytest.raises(ToolNotFoundError, match="did you mean read_file") as caught:
        view.get_or_raise("read_fil")
    assert caught.value.details["suggestions"][0] == "read_file"


@pytest.mark.promise("R57")
def test_hidden_and_missing_tools_fail_alike(guarded: ToolRegistry) -> None:
    view = guarded.snapshot().for_agent("writer")
    messages = set()
    for name in ("read_mail", "read_mall"):
        with pytest.raises(ToolNotFoundError) as caught:
            view.get_or_raise(name)
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.promise("LT-20")
def test_configuration_is_held_per_tool() -> None:
    settings = {"add": {"limit": 3}}
    registry = ToolRegistry([named("add")], config=settings)
    settings["add"]["limit"] = 4

    assert registry.snapshot().config_of("add") == {"limit": 3}
    assert registry.snapshot().config_of("other") == {}


# --- ten thousand tools --------------------------------------------------------------


def steps(action: Callable[[], object]) -> int:
    """Return how many lines and calls an action takes."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    action()
    gc.disable()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
        gc.enable()
    return count


def crowd(size: int) -> ToolRegistry:
    """Return a registry of many tools that share one schema."""
    first = named("tool_0")
    first.check_definition()
    tools = [alike(first, f"tool_{number}") for number in range(size)]
    return ToolRegistry(tools, visible=lambda agent_id, subject: agent_id == "a")


@pytest.mark.promise("GA-16")
def test_ten_thousand_tools_cost_a_call_nothing() -> None:
    few, many = crowd(10), crowd(10_000)

    def look_up(registry: ToolRegistry) -> Callable[[], object]:
        return lambda: registry.snapshot().for_agent("a").get_or_raise("tool_7")

    assert steps(look_up(few)) == steps(look_up(many)) < 60
    assert steps(few.snapshot) == steps(many.snapshot) < 5


def test_a_failed_look_up_among_many_is_bounded() -> None:
    many = crowd(10_000)
    compared: list[str] = []

    def counting(agent_id: str | None, subject: Tool) -> bool:
        compared.append(subject.name)
        return True

    counted = ToolRegistry(list(many), visible=counting)
    with pytest.raises(ToolNotFoundError):
        counted.snapshot().for_agent("a").get_or_raise("tool_x")
    assert len(compared) <= 50


def test_a_foreign_tool_stands_beside_ours() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    foreign = JSONSchemaTool(lambda given: given, name="far.search", parameters=schema)
    registry = ToolRegistry([tool(lambda: 1, name="one"), foreign])

    assert registry.get("far_search") is foreign
