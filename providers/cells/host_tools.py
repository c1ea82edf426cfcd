"""Python programs in a cell whose global functions are functions of the host."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import anyio.to_thread
from pydantic_core import to_jsonable_python

from toolcell.core import GuardError, InvalidInputError
from toolcell.sandbox import ExecutionResult, HostCalls

from .guarded_session import GuardedSession

_MAX_CALLS = 10_000

Tools = Mapping[str, Callable[..., Any]]


def name_tools(names: Iterable[str]) -> str:
    """Return a line that makes host functions globals of a program.

    Raises:
        InvalidInputError: A name is no identifier.
    """
    names = list(names)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or keyword.iskeyword(name):
            raise InvalidInputError(
                f"{name!r} cannot be a function of Python", hint="rename the tool"
            )
    return "; ".join(f"{name} = tools.{name}" for name in names)


async def run_with_tools(
    guarded: GuardedSession,
    code: str,
    tools: Tools,
    *,
    before: str = "",
    inputs: Mapping[str, Any] | None = None,
) -> ExecutionResult:
    """Run a program whose calls of tools, as global functions, run on the host.

    They run in threads. Each call is one through the guard, under its own name and
    with `args` and `kwargs`. What a tool raises is a ToolError in the program.

    Args:
        guarded: Where it runs.
        code: The program.
        tools: The functions by name; arguments and values go by JSON.
        before: A line of the provider itself that runs before it.
        inputs: JSON values that become variables.

    Raises:
        GuardError, InvalidInputError, CellLostError: As `GuardedSession.run_python`.
    """

    async def answer(
        name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            async with guarded.call(name, args=args, kwargs=kwargs) as allowed:
                asked = allowed.arguments
                bound = partial(tools[name], *asked["args"], **asked["kwargs"])
                value = await anyio.to_thread.run_sync(bound)
                return {"value": to_jsonable_python(value, fallback=str)}
        except GuardError as error:
            return {"error": {"code": error.kind, "message": str(error)}}
        except Exception as error:  # noqa: BLE001 - the program handles it
            message = f"{type(error).__name__}: {error}"
            return {"error": {"code": "failed", "message": message}}

    calls = HostCalls(names=tuple(tools), handler=answer, max_calls=_MAX_CALLS)
    lines = f"{name_tools(tools)}\n{before}"
    return await guarded.run_python(
        code, before=f"exec({lines!r})", inputs=inputs, calls=calls
    )
