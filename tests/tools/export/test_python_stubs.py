"""What a program is offered, and how a model is told of it."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from toolcell.core import ConfigError
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.guard.spi import Rule
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools import (
    CodeExecutor,
    JSONSchemaTool,
    MCPCommand,
    MCPToolset,
    SequentialExecutor,
    Tool,
    ToolRegistry,
    tool,
)
from toolcell.tools.export.python_stubs import MAX_CHARACTERS, MAX_NAME, stub
from toolcell.tools.spi import MCPDefinition, MCPPins

from ...support.mcp.servers import Scripted

pytestmark = pytest.mark.anyio


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def test_every_name_can_be_written_in_python(sandbox: SandboxManager) -> None:
    names = ["call", "files.read", "to-do", "class", "_fd", "__class__", "3d"]
    tools = [tool(name=name)(lambda: 1) for name in names]
    code = CodeExecutor(sandbox, ToolRegistry(tools), guard=None)
    written = ["call", "files_read", "to_do", "class_", "tool_fd", "tool_class__"]
    calls = ", ".join(f"tools.{name}()" for name in [*written, "tool_3d"])
    result = await code.execute(f"[{calls}]")

    assert result.value == [1] * 7, result.stderr
    assert [call.call.name for call in result.calls] == names


def closed() -> SandboxManager:
    return SandboxManager(SandboxConfig(backend="subprocess"))


@pytest.mark.promise("R48", "R76")
async def test_two_tools_of_one_name_are_left_out_and_named_once(
    sandbox: SandboxManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Scripted(tmp_path, "x-y", "x_y").toolset() as twins:
        registry = ToolRegistry([*twins.tools, add])
        code = CodeExecutor(sandbox, registry, guard=None)
        with caplog.at_level(logging.WARNING, "toolcell.tools"):
            result = await code.execute(
                "[tools.add(1, 2), hasattr(tools, 'test__x_y')]"
            )
            described = code.describe_tools()

    assert result.value == [3, False], result.stderr
    assert "add" in described and "test__" not in described
    [told] = [each for each in caplog.records if "test__x-y" in each.getMessage()]
    assert "test__x-y and test__x_y" in told.getMessage()


def test_the_guard_is_named_once() -> None:
    registry = ToolRegistry([add])
    make: Any = CodeExecutor
    executor = SequentialExecutor(registry, guard=None)

    assert make(closed(), registry, executor=executor).executor is executor
    with pytest.raises(ConfigError, match="needs a guard or an executor"):
        make(closed(), registry)
    with pytest.raises(ConfigError, match="its own guard"):
        make(closed(), registry, guard=None, executor=executor)
    with pytest.raises(ConfigError, match="another registry"):
        make(closed(), ToolRegistry(), executor=executor)
    for limit in ("max_calls", "max_concurrency", "max_depth"):
        with pytest.raises(ConfigError, match="at least 1"):
            make(closed(), registry, guard=None, **{limit: 0})


def test_an_agent_is_told_of_what_it_may_call_only() -> None:
    paying = tool(name="pay", tags={"money"})(add.function)
    reading = tool(name="read")(add.function)
    guard = ActionGuard(
        [
            AgentPolicy(agent_id="all", allow=["add", "pay", "read"]),
            AgentPolicy(agent_id="some", allow=["*"], deny=[Rule(tags=["money"])]),
        ]
    )
    code = CodeExecutor(closed(), ToolRegistry([add, paying, reading]), guard=guard)
    described = {
        agent: [line.split("(")[0][4:] for line in text.splitlines() if "def " in line]
        for agent in ("all", "some", "unknown", None)
        for text in [code.describe_tools(agent)]
    }

    assert described["all"] == ["add", "pay", "read"]
    assert described["some"] == ["add", "read"]
    assert described["unknown"] == described[None] == []


class Guest(BaseModel):
    """A person."""

    name: str
    friends: list[Guest] = []


def stub_of(*tools: Any) -> ast.Module:
    described = CodeExecutor(closed(), ToolRegistry(tools), guard=None).describe_tools()
    return ast.parse(described)


def test_tools_are_described_as_python() -> None:
    @tool
    def book(guest: Guest, room: Literal["a", 1] | None = None) -> dict[str, int]:
        """Book a room.

        Args:
            guest: Who comes.
        """
        return {}

    described = CodeExecutor(closed(), ToolRegistry([add, book]), guard=None)

    assert (
        described.describe_tools()
        == '''def add(a: int, b: int = 1) -> int:
    """Add two numbers."""

class book_Guest(TypedDict):
    name: str
    friends: NotRequired[list[book_Guest]]

def book(guest: book_Guest, room: Literal['a', 1] | None = None) -> dict[str, int]:
    """Book a room.

    Args:
        guest: Who comes.
    """'''
    )


def mcp_tool(**fields: Any) -> Tool:
    """Return an approved tool of a server that is not started."""
    definition = MCPDefinition(name="log", input_schema={"type": "object"}, **fields)
    server = MCPCommand(command="none", where="host")
    [made] = MCPToolset("git", server, pins=MCPPins({"git": [definition]})).tools
    return made


@pytest.mark.promise("door-7")
def test_the_answer_of_an_mcp_tool_is_described() -> None:
    person = {"type": "object", "properties": {"mail": {"type": "string"}}}
    commit = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "by": person,
            "parents": {"type": "array", "items": {"$ref": "#/$defs/commit"}},
        },
        "required": ["id", "by"],
    }
    output = {
        "type": "object",
        "properties": {
            "last": {"$ref": "#/$defs/commit"},
            "odd": {"anyOf": [person, {"type": "object"}]},
            "sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {"$ref": "#/$defs/any"},
        },
        "required": ["last"],
        "$defs": {"commit": commit, "any": True},
    }
    described = CodeExecutor(
        closed(), ToolRegistry([mcp_tool(output_schema=output)]), guard=None
    ).describe_tools()

    assert described.startswith("""class git__log_returns(TypedDict):
    last: git__log_returns_commit
    odd: NotRequired[git__log_returns_odd | dict[str, Any]]
    sizes: NotRequired[dict[str, int]]
    any: NotRequired[Any]

class git__log_returns_commit(TypedDict):
    id: str
    by: git__log_returns_commit_by
    parents: NotRequired[list[git__log_returns_commit]]

class git__log_returns_commit_by(TypedDict):
    mail: NotRequired[str]

class git__log_returns_odd(TypedDict):
    mail: NotRequired[str]

def git__log() -> git__log_returns:""")


def test_an_mcp_tool_without_a_schema_of_its_answers_mostly_returns_text() -> None:
    [function] = stub_of(mcp_tool()).body

    assert isinstance(function, ast.FunctionDef) and function.returns is not None
    assert ast.unparse(function.returns) == "str | list[dict[str, Any]]"


class Greeting(Tool):
    """Greet."""

    name = "greet"

    def execute(self) -> list[str]:
        return ["hello"]


class Parting(Tool):
    """Part."""

    name = "part"

    def execute(self) -> None:
        pass


def test_the_result_of_a_tool_that_is_a_class_is_described() -> None:
    functions = stub_of(Greeting(), Parting()).body

    shown = [
        function.returns
        for function in functions
        if isinstance(function, ast.FunctionDef)
    ]
    assert [each and ast.unparse(each) for each in shown] == ["list[str]", "None"]


@pytest.mark.parametrize(
    "text", ['"""\nimport os', '"', "\\", '\\"""', '""""', "a\n  b", '"""' * 3 + '"']
)
def test_a_description_stays_inside_its_quotes(text: str) -> None:
    properties = {"x": {"description": text}}
    plain = tool(name="plain", description=text)(lambda: 1)
    schema = {"type": "object", "properties": properties}
    detailed = tool(name="detailed", description=text, parameters=schema)(lambda x=1: 1)
    for made in (plain, detailed):
        [function] = stub_of(made).body
        assert isinstance(function, ast.FunctionDef)
        assert len(function.body) == 1
        assert text.split("\n")[0] in (ast.get_docstring(function, clean=False) or "")


def test_what_python_cannot_write_is_still_described() -> None:
    schema = {
        "type": "object",
        "properties": {
            "late": {"type": ["string", "null"], "default": None},
            "early": {"enum": ["a", 1.5]},
            "first-name": {"type": "string"},
            "items": {"type": "array", "items": {"type": "number"}},
            "map": {"type": "object", "additionalProperties": {"const": True}},
            "odd": {"not": {}},
            "recursive": {"$ref": "#/$defs/r"},
        },
        "required": ["early"],
        "$defs": {"r": {"type": "array", "items": {"$ref": "#/$defs/r"}}},
    }
    made = JSONSchemaTool(lambda given: given, name="odd", parameters=schema)
    [function] = stub_of(made).body

    assert isinstance(function, ast.FunctionDef)
    assert ast.unparse(function.args) == (
        "late: str | None=None, *, early: Any, items: list[float]=..., "
        "map: dict[str, Literal[True]]=..., odd: Any=..., recursive: list[Any]=..., "
        "**others: Any"
    )
    assert "first-name" in (ast.get_docstring(function) or "")


def definitions(count: int, of_next: Any) -> dict[str, Any]:
    """Return a schema of definitions, each made of the next one."""
    made = {f"a{n}": of_next({"$ref": f"#/$defs/a{n + 1}"}) for n in range(count)}
    made[f"a{count}"] = {"type": "integer"}
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a0"}},
        "$defs": made,
    }


@pytest.mark.promise("R58")
@pytest.mark.parametrize(
    "schema",
    [
        definitions(400, lambda following: following),
        definitions(
            30,
            lambda following: {
                "anyOf": [following, {"type": "array", "items": following}]
            },
        ),
    ],
    ids=["deep", "doubling"],
)
def test_a_schema_without_end_costs_its_own_types(schema: dict[str, Any]) -> None:
    made = JSONSchemaTool(lambda given: given, name="odd", parameters=schema)
    functions = stub_of(made, add).body

    written = [
        function for function in functions if isinstance(function, ast.FunctionDef)
    ]
    assert {each.name for each in written} == {"odd", "add"}
    assert "x: Any=..." in {ast.unparse(each.args) for each in written}


def test_an_object_or_null_is_written_the_same_wherever_it_is_named() -> None:
    properties = {"id": {"type": "string"}, "next": {"$ref": "#/$defs/node"}}
    node = {"type": ["object", "null"], "properties": properties, "required": ["id"]}
    names = ("a", "b", "c", "d")
    places = zip(names, ("node", "node", "nodes", "nodes"), strict=True)
    output = {
        "type": "object",
        "properties": {name: {"$ref": f"#/$defs/{kind}"} for name, kind in places},
        "required": [*names],
        "$defs": {
            "node": node,
            "nodes": {
                "type": "array",
                "items": {"type": ["object", "null"], "properties": {"x": True}},
            },
        },
    }
    text = stub("log", mcp_tool(output_schema=output))

    assert text.startswith("""class log_returns(TypedDict):
    a: log_returns_node | None
    b: log_returns_node | None
    c: list[log_returns_nodes | None]
    d: list[log_returns_nodes | None]

class log_returns_node(TypedDict):
    id: str
    next: NotRequired[log_returns_node | None]

class log_returns_nodes(TypedDict):
    x: NotRequired[Any]

def log() -> log_returns:""")


DRAFT_07 = "http://json-schema.org/draft-07/schema#"
"""It has no `$defs`, so what is there need not be schemas."""

ELSEWHERE = {
    "$id": "http://a/b",
    "$defs": {"0": {"type": "object"}},
    "type": "object",
    "properties": {"y": {"$ref": "#/$defs/0"}},
}


@pytest.mark.parametrize(
    ("defined", "field"),
    [
        ([{"type": "string"}], {"$ref": "#/$defs/0"}),
        ({"#": {"enum": 3}}, {"$ref": "#"}),
        ({"#": {"anyOf": 3}}, {"$ref": "#"}),
        ({"0": {"enum": 3}}, ELSEWHERE),
        ({"0": {"type": "object", "properties": ["x"]}}, ELSEWHERE),
        ({"0": {"properties": {"a": {}}, "required": 3}}, ELSEWHERE),
    ],
)
def test_definitions_that_are_no_schemas_are_described(
    defined: Any, field: dict[str, Any]
) -> None:
    output = {"type": "object", "properties": {"x": field}, "$defs": defined}
    made = mcp_tool(output_schema={"$schema": DRAFT_07, **output})

    names = [getattr(each, "name", "") for each in stub_of(made, add).body]
    assert {"git__log_returns", "git__log", "add"} <= set(names)


def chain(field: str, levels: int) -> dict[str, Any]:
    """Return a schema of an object in an object, and so on."""
    made: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        made = {"type": "object", "properties": {field: made}}
    return made


@pytest.mark.promise("R58")
def test_a_name_does_not_grow_without_end() -> None:
    made = mcp_tool(output_schema=chain("f" * 50, 12))
    classes = [each for each in stub_of(made).body if isinstance(each, ast.ClassDef)]

    assert 1 < len(classes) < 12
    assert max(len(class_.name) for class_ in classes) <= MAX_NAME
    assert "dict[str, Any]" in ast.unparse(classes[-1])


@pytest.mark.promise("R58")
def test_a_text_that_is_written_often_is_not_without_end() -> None:
    fields = {f"f{n}": {"$ref": "#/$defs/long"} for n in range(500)}
    output = {
        "type": "object",
        "properties": {**fields, "last": chain("x", 2)},
        "$defs": {"long": {"enum": ["x" * 10_000]}},
    }
    text = stub("log", mcp_tool(output_schema=output))

    assert len(text) < MAX_CHARACTERS + 30_000
    assert "    f0: NotRequired[Literal['xxx" in text
    # Nothing is written that has no use.
    assert text.endswith("    last: NotRequired[Any]\n\n" + text.split("\n\n")[-1])
