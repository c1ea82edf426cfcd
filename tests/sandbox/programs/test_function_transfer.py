"""Functions that travel into cells by value, and what keeps them on the host."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from toolcell.core import CallFailedError, ConfigError, InvalidInputError, ToolCall
from toolcell.sandbox import SandboxManager
from toolcell.sandbox.spi import call_program
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

from ...support.corpora import naughty_strings

pytestmark = pytest.mark.anyio

user: ContextVar[str] = ContextVar("user", default="nobody")
never_set: ContextVar[str] = ContextVar("never_set")
credentials: ContextVar[str] = ContextVar("credentials", default="")


@dataclasses.dataclass
class Shop:
    prices: dict[str, int]

    def total(self, items: list[str]) -> int:
        return sum(self.prices[item] for item in items)


def tenfold(number: int) -> int:
    return number * 10


def adder(left: int) -> Callable[[int], int]:
    day, words = datetime.date(2026, 1, 2), {"known", "words"}
    pattern = re.compile("a+")

    def add(right: int, more: tuple[int, ...] = (1, 2)) -> int:
        # No assert: pytest would rewrite it to something of its own.
        known = day.day == 2 and "known" in words and pattern.match("aa")
        return tenfold(left) + right + sum(more) if known else -1

    return add


def made_without_source() -> Callable[[int], int]:
    names: dict[str, Any] = {}
    exec("def double(number):\n    return number * 2", names)
    made: Callable[[int], int] = names["double"]
    return made


NO_MORE: dict[str, Any] = {"more": ()}


def recursive() -> Callable[[int], int]:
    def factorial(number: int) -> int:
        return 1 if number < 2 else number * factorial(number - 1)

    return factorial


@pytest.mark.parametrize(
    ("function", "argument", "value"),
    [
        (adder(4), 2, 45),
        (lambda number: tenfold(number) + 1, 2, 21),
        (functools.partial(adder(1), **NO_MORE), 2, 12),
        (Shop({"tea": 3, "cake": 4}).total, ["tea", "cake", "tea"], 10),
        (made_without_source(), 4, 8),
        (recursive(), 5, 120),
    ],
    ids=["closure", "lambda", "partial", "method", "no-source", "recursive"],
)
async def test_whatever_can_be_called_travels(
    sandbox: SandboxManager, function: Any, argument: Any, value: int
) -> None:
    assert await sandbox.call(function, argument) == value


async def test_a_sandboxed_tool_may_be_a_closure(sandbox: SandboxManager) -> None:
    greeting = "good day"

    @tool(sandboxed=True)
    def greet(name: str) -> list[Any]:
        return [f"{greeting}, {name}", os.getuid()]

    executor = ConcurrentExecutor(ToolRegistry([greet]), guard=None, sandbox=sandbox)
    arguments: Any = {"name": "Ada"}
    result = await executor.call(ToolCall(id="1", name="greet", arguments=arguments))

    # Read by the code's own uid, not by the supervisor's.
    assert result.content == ["good day, Ada", 10_001]


@pytest.mark.promise("LT-12")
async def test_context_variables_reach_cells(sandbox: SandboxManager) -> None:
    @tool(sandboxed=True)
    def who() -> list[str | None]:
        return [user.get(), never_set.get(None)]

    executor = ConcurrentExecutor(ToolRegistry([who]), guard=None, sandbox=sandbox)
    before = await executor.call(ToolCall(id="1", name="who"))
    token = user.set("ada")
    [after] = await executor.execute([ToolCall(id="2", name="who")])
    user.reset(token)

    assert before.content == ["nobody", None]
    assert after.content == ["ada", None]


@pytest.mark.promise("E-70", "LT-12")
async def test_a_secret_in_a_context_variable_stays() -> None:
    @tool(sandboxed=True)
    def leak() -> str:
        return credentials.get()

    # What is set later is looked at when the tool is called.
    executor = ConcurrentExecutor(ToolRegistry([leak]), guard=None)
    token = credentials.set("hunter2hunter2")
    result = await executor.call(ToolCall(id="1", name="leak"))
    credentials.reset(token)

    assert result.status == "error"
    assert result.error is not None
    assert result.error.kind == "config"
    assert "hunter2" not in result.to_text()


async def test_another_python_refuses_what_it_cannot_read(
    sandbox: SandboxManager,
) -> None:
    program = call_program(lambda: 1, (), {})
    program.inputs["call_interpreter"] = ["cpython", 3, 2]
    result = await sandbox.run(program.code, inputs=program.inputs)

    assert result.status == "error"
    assert result.exception is not None
    assert result.exception.type == "InterpreterMismatch"
    assert "made by cpython 3.2" in result.exception.message


@pytest.mark.promise("E-103")
async def test_no_path_of_the_host_travels(sandbox: SandboxManager) -> None:
    reason = "on purpose"

    def fail() -> None:
        raise KeyError(reason)

    with pytest.raises(CallFailedError) as failure:
        await sandbox.call(fail)
    told = failure.value.result.exception.traceback
    program = call_program(fail, (), {})

    assert "on purpose" in told
    assert str(Path(__file__).parent) not in told + str(program.inputs)
    assert b"test_function_transfer.py" not in bytes(str(program.inputs), "utf-8")


def holding(value: Any) -> Callable[[], Any]:
    def hold() -> Any:
        return value

    return hold


@pytest.mark.promise("E-39")
@pytest.mark.parametrize(
    "make",
    [
        lambda: open(os.devnull),
        lambda: socket.socket(),
        lambda: threading.Lock(),
        lambda: logging.getLogger("here"),
        lambda: (number for number in range(3)),
        lambda: {"deep": [SecretStr("x")]},
        lambda: object(),
    ],
    ids=["file", "socket", "lock", "logger", "generator", "secret", "object"],
)
def test_what_belongs_to_the_host_is_refused_with_its_name(make: Any) -> None:
    held = make()
    try:
        with pytest.raises(InvalidInputError, match=r"refers to (value|deep)"):
            call_program(holding(held), (), {})
        with pytest.raises(ConfigError, match="cannot run in a cell"):
            ToolRegistry([tool(holding(held), sandboxed=True)])
    finally:
        if hasattr(held, "close"):
            held.close()


@pytest.mark.promise("E-70")
@pytest.mark.parametrize(
    "held",
    [
        {"password": "hunter2"},
        [{"nested": ("sk-abcdefghijklmnopqrstuvwx",)}],
        Shop({"api_key": 12345}),
        "x" * 10_000 + " ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        b"-----BEGIN PRIVATE KEY-----abc",
    ],
    ids=["dict", "token", "dataclass", "late", "bytes"],
)
def test_a_closure_over_a_secret_is_refused(held: Any) -> None:
    with pytest.raises(ConfigError, match="looks like a secret"):
        ToolRegistry([tool(holding(held), sandboxed=True)])


def test_long_texts_are_no_secrets() -> None:
    ToolRegistry([tool(holding("word " * 5_000), sandboxed=True)])
    ToolRegistry([tool(holding(naughty_strings()[:5]), sandboxed=True)])


def test_async_functions_and_classes_do_not_travel() -> None:
    async def later() -> None: ...

    for wrong in (later, Shop, len, object()):
        with pytest.raises(InvalidInputError, match="not a plain function"):
            call_program(wrong, (), {})  # type: ignore[arg-type]
