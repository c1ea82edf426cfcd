"""Programs that call guarded tools, without async."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from toolcell.core import ConfigError, InvalidInputError
from toolcell.guard import AgentPolicy
from toolcell.sandbox import SandboxConfig
from toolcell.tools import ToolContext, open_code_executor

from ...conftest import apart

CONFIG = SandboxConfig(backend="subprocess")
POLICY = AgentPolicy(agent_id="a", allow=["double", "who"])


def double(number: int) -> int:
    """Return twice a number."""
    return 2 * number


def who(context: ToolContext) -> str | None:
    """Say who calls."""
    return context.agent_id


def refund(order: str) -> None:
    """Give money back."""
    raise AssertionError(f"the guard let {order} through")


@pytest.mark.promise("A-01 GR-18")
def test_programs_call_what_the_policy_allows_and_nothing_else() -> None:
    with open_code_executor(
        [double, who, refund], policy=POLICY, config=CONFIG
    ) as code:
        allowed = code.execute("[tools.double(number=21), tools.who()]")
        refused = code.execute("tools.refund(order='7')")

    assert allowed.value == [42, "a"]
    assert [(call.call.name, call.result.status) for call in refused.calls] == [
        ("refund", "denied")
    ]
    assert refused.status == "error"
    assert refused.exception is not None
    assert refused.exception.message.startswith("no rule allows 'refund'")


@pytest.mark.promise("A-01")
def test_without_a_policy_each_call_is_refused() -> None:
    with open_code_executor([double], config=CONFIG) as code:
        [call] = code.execute("tools.double(number=21)").calls

    assert call.result.status == "denied"


def test_a_program_cannot_be_another_agents() -> None:
    with (
        open_code_executor([who], policy=POLICY, config=CONFIG) as code,
        pytest.raises(TypeError, match="agent_id"),
    ):
        code.execute("tools.who()", agent_id="another")


def test_an_error_of_a_program_is_a_result() -> None:
    with open_code_executor([double], policy=POLICY, config=CONFIG) as code:
        result = code.execute("tools.double(number=1) / 0")

    assert result.status == "error"
    assert result.exception is not None
    assert result.exception.type == "ZeroDivisionError"


def test_it_serves_a_running_loop_and_threads() -> None:
    async def cell_of_a_notebook() -> list[object]:
        with (
            open_code_executor([double], policy=POLICY, config=CONFIG) as code,
            ThreadPoolExecutor(2) as threads,
        ):
            programs = ["tools.double(number=1)", "tools.double(number=2)"]
            return [result.value for result in threads.map(code.execute, programs)]

    assert apart(lambda: anyio.run(cell_of_a_notebook)) == [2, 4]


def test_a_closed_one_says_so() -> None:
    with open_code_executor([double], policy=POLICY, config=CONFIG) as code:
        pass

    with pytest.raises(InvalidInputError, match="after its `with` block"):
        code.execute("1")


def test_a_tool_on_its_event_loop_cannot_wait_for_it() -> None:
    async def recurse() -> object:
        """Run another program."""
        return code.execute("1").value

    policy = AgentPolicy(agent_id="a", allow=["recurse"])
    with open_code_executor([recurse], policy=policy, config=CONFIG) as code:
        result = code.execute("tools.recurse()")

    assert result.exception is not None
    assert "on its own event loop" in result.exception.message


def test_what_is_no_tool_is_refused_before_a_cell_is_made() -> None:
    with pytest.raises(ConfigError), open_code_executor([7], config=CONFIG):  # type: ignore[list-item]
        pass
