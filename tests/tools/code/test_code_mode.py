"""Code mode: a model finds tools by words, and its program calls them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.guard.spi import RateLimit
from toolcell.sandbox import SandboxManager
from toolcell.tools import (
    CodeExecutor,
    ConcurrentExecutor,
    JSONSchemaTool,
    Tool,
    ToolRegistry,
    to_anthropic,
    tool,
)
from toolcell.tools.builtin import code_mode_tools
from toolcell.tools.code import tool_index
from toolcell.tools.code.catalogue import MAX_FULL_CHARACTERS, ToolCatalogue
from toolcell.tools.code.tool_index import ToolIndex

from ...support.corpora import records

pytestmark = [pytest.mark.anyio, pytest.mark.promise("door-7")]


@tool(name="shop.getPrice")
async def price(item: str, currency: str = "EUR") -> float:
    """Say what an item costs.

    Args:
        item: The ware, such as tea.
        currency: The money to count in.
    """
    return {"tea": 2.5, "cake": 4.0}[item]


@tool
async def refund(order: str) -> str:
    """Give the money of an order back."""
    return f"{order} is paid back"


@tool
async def secret_refund(order: str) -> str:
    """Give the money of an order back, and tell nobody."""
    return order


POLICY = AgentPolicy(
    agent_id="a",
    deny=["secret_refund"],
    allow=["shop.getPrice", "refund", "@code_mode"],
)


def code_mode(sandbox: SandboxManager, *tools: Tool) -> ConcurrentExecutor:
    registry = ToolRegistry(tools or (price, refund, secret_refund))
    executor = ConcurrentExecutor(registry, guard=ActionGuard([POLICY]))
    code = CodeExecutor(sandbox, registry, executor=executor)
    registry.register_many(code_mode_tools(sandbox, executor=code))
    return executor


async def ask(executor: ConcurrentExecutor, name: str, **arguments: Any) -> Any:
    call = ToolCall(id=name, name=name, agent_id="a", arguments=arguments)
    result = await executor.call(call)
    assert result.error is None, result.error
    return result.content


async def test_a_model_finds_tools_and_calls_them_in_one_program(
    sandbox: SandboxManager,
) -> None:
    executor = code_mode(sandbox)

    found = await ask(executor, "search_tools", query="item price", limit=1)
    ran = await ask(
        executor,
        "run_code",
        code="sum(tools.shop_getPrice(item=each) for each in ('tea', 'cake'))",
    )

    assert found == (
        'def shop_getPrice(item: str, currency: str = \'EUR\') -> float:\n    """Say'
        " what an item costs.\n\n    Args:\n        item: The ware, such as tea.\n"
        '        currency: The money to count in.\n    """'
    )
    assert (ran["status"], ran["value"]) == ("ok", 6.5), ran
    assert [call["name"] for call in ran["calls"]] == ["shop.getPrice"] * 2


async def test_what_a_policy_denies_is_neither_found_nor_described_nor_called(
    sandbox: SandboxManager,
) -> None:
    executor = code_mode(sandbox)
    program = "[tools.refund('7'), tools.secret_refund('7')]"

    found = await ask(executor, "search_tools", query="money order back nobody")
    told = await ask(
        executor,
        "describe_tools",
        names=["secret_refund", "refund", "shop.getPrice", "run_code"],
    )
    ran = await ask(executor, "run_code", code=program)

    assert "def refund(" in found and "secret" not in found
    assert "# There is no tool 'secret_refund'." in told
    assert "# There is no tool 'run_code'." in told
    assert "def refund(" in told and "def shop_getPrice(" in told
    assert ran["status"] == "error" and "ToolError" in ran["traceback"]


async def test_a_program_calls_none_of_the_three(sandbox: SandboxManager) -> None:
    executor = code_mode(sandbox)
    program = "[hasattr(tools, n) for n in ('run_code', 'search_tools', 'refund')]"

    ran = await ask(executor, "run_code", code=program)

    assert ran["value"] == [False, False, True]
    model = [each.name for each in executor.tools("a")]
    assert model[-3:] == ["search_tools", "describe_tools", "run_code"]


async def test_a_refusal_says_when_to_try_again(sandbox: SandboxManager) -> None:
    policy = POLICY.model_copy(
        update={"rate_limits": (RateLimit(calls=1, seconds=60),)}
    )
    registry = ToolRegistry([refund, secret_refund])
    code = CodeExecutor(sandbox, registry, guard=ActionGuard([policy]))
    program = """
def said(tool):
    try: return tool("7")
    except ToolError as error: return [error.kind, error.retry_after]
[said(tools.refund), said(tools.secret_refund), said(tools.refund)]
"""
    result = await code.execute(program, agent_id="a")

    value: Any = result.value
    paid, denied, limited = value
    assert (paid, denied) == ("7 is paid back", ["guard.denied", None])
    assert limited[0] == "guard.denied" and 0 < limited[1] <= 60


async def test_a_tool_that_comes_later_is_found(sandbox: SandboxManager) -> None:
    executor = code_mode(sandbox, refund)
    before = await ask(executor, "search_tools", query="item")
    executor.registry.register(price)

    after = await executor.call(
        {"id": "2", "name": "search_tools", "agent_id": "a"}
        | {"arguments": {"query": "item"}}
    )

    assert before.startswith("No tool") and "shop_getPrice" in str(after.content)


async def test_a_long_answer_has_one_line_for_each_further_tool(
    sandbox: SandboxManager,
) -> None:
    long = [
        tool(name=f"t{number}", description="Find a needle. " + "word " * 200)(
            refund.function
        )
        for number in range(6)
    ]
    policy = AgentPolicy(agent_id="a", allow=["*"])
    registry = ToolRegistry(long)
    executor = ConcurrentExecutor(registry, guard=ActionGuard([policy]))
    code = CodeExecutor(sandbox, registry, executor=executor)
    registry.register_many(code_mode_tools(sandbox, executor=code))

    found = await ask(executor, "search_tools", query="needle")

    assert found.count('"""') == 4 and found.count("...  # Find a needle.") == 4
    assert len(found) < MAX_FULL_CHARACTERS + 1_000


ODD = [
    *('"', 'a"b', "AND", "OR", "NOT x", "*", "-x", "git-log", "a:b", "(", "a)", "+"),
    *("NEAR(", "C++", "it's", "a;b", "file.txt", "@x", "", "name:git", "^git", "\x00"),
    *("\ud800", "🔥", "日本語", "a\x00b", "%", "x" * 100_000, "x " * 100_000),
]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_text_finds_nothing_and_raises_nothing(text: str) -> None:
    """Attack: text that FTS5 reads as its own language, and what breaks its reader."""
    index = ToolIndex([refund])

    assert index.search(text) == []
    assert index.search(f"refund {text}") == ["refund"]


def test_names_are_found_by_their_words() -> None:
    index = ToolIndex([price, refund, secret_refund])

    assert index.search("getPrice") == index.search("GET price") == ["shop.getPrice"]
    assert index.search("currency") == ["shop.getPrice"]
    assert index.search("secret-refund")[0] == "secret_refund"
    assert index.search("🔥 '' \x00") == []


def test_without_fts5_tools_are_ordered_by_how_many_words_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = "CREATE VIRTUAL TABLE tools USING no_such_module (name, words)"
    monkeypatch.setattr(tool_index, "_SCHEMA", absent)
    index = ToolIndex([price, refund, secret_refund])

    assert index.search("secret money")[0] == "secret_refund"
    assert index.search("getPrice") == ["shop.getPrice"]
    assert index.search("🔥") == index.search("nothing like it") == []
    assert ToolIndex([]).search("money") == []


KEYWORDS = {
    "game guide search": "GameGuideAPI_search_guide",
    "artwork auction price": "art_auction_fetch_artwork_price",
    "body mass index": "calculate_bmi",
    "polynomial derivative": "calculate_derivative",
    "greatest common divisor": "calculate_gcd",
    "wire resistance": "calculate_resistance",
    "confidence interval mean": "confidence_interval_calculate",
    "create histogram": "create_histogram",
    "database backup": "database_create_backup",
    "turtle population": "ecology_get_turtle_population",
    "quarterly dividend share": "finance_calculate_quarterly_dividend_per_share",
    "book flight": "flight_book",
    "grocery order delivery": "grocery_delivery_order",
    "president by year": "history_api_get_president_by_year",
    "house price forecast": "house_price_forecast",
    "lawyer search expertise": "lawyer_search",
    "museum opening hours": "museum_get_hours",
    "poker winner cards": "poker_game_winner",
    "recipe dietary ingredients": "recipe_search",
    "sales growth rate": "sales_growth_calculate",
}
"""Twenty tasks as a model asks for them, and the tool that does each."""


def thousand_tools() -> ToolRegistry:
    registry = ToolRegistry()
    for number, about in enumerate(records("bfcl/tools.jsonl")[:1000]):
        words = re.sub(r"[^A-Za-z0-9_]", "_", about["name"])[:50]
        registry.register(
            JSONSchemaTool(
                refund.function,
                name=f"t{number}_{words}",
                description=about["description"],
                parameters=about["inputSchema"],
            )
        )
    return registry


def test_keywords_find_their_tool_among_the_first_ten_of_a_thousand() -> None:
    index = ToolIndex(thousand_tools().snapshot())
    found = {query: index.search(query)[:10] for query in KEYWORDS}
    bare = {
        query: [name.partition("_")[2] for name in names]
        for query, names in found.items()
    }

    assert [query for query in KEYWORDS if KEYWORDS[query] not in bare[query]] == []


async def test_code_mode_costs_a_twentieth_of_a_thousand_tools(
    sandbox: SandboxManager,
) -> None:
    """The gate of 5 % of what the whole list says, an answer of ten tools included."""
    registry = thousand_tools()
    code = CodeExecutor(sandbox, registry, guard=None)
    three = code_mode_tools(sandbox, executor=code)
    catalogue = ToolCatalogue(code)
    tools = list(registry.snapshot())
    queries = [" ".join(tool.description.split()[:4]) for tool in tools[::50]]
    answers = [catalogue.search("a", query, 10) for query in queries]

    whole = len(json.dumps([to_anthropic(each) for each in tools]))
    shown = len(json.dumps([to_anthropic(each) for each in three]))
    assert len(tools) == 1000 and all(answer.count("def ") > 5 for answer in answers)
    assert shown + max(map(len, answers)) <= whole * 0.05
