"""Map and reduce: a task for each text, eight at once, and one that adds them up.

One text is empty, so its worker fails; the log says so, and the others count.
"""

from __future__ import annotations

import anyio
from pydantic import BaseModel

from toolcell.flow import (
    START,
    Flow,
    Graph,
    SendBatch,
    SendResult,
    aggregate_send_results,
    scatter,
)


class Count(BaseModel):
    """The state: texts, and the words in them."""

    texts: tuple[str, ...] = ()
    words: int = 0
    failed: int = 0


graph = Graph(Count, name="count-words")


@graph.node
def split(state: Count) -> SendBatch:
    """Send each text to its own worker."""
    sends = scatter("count", state.texts, key="text")
    return SendBatch(sends=sends, aggregator_node="add", on_failure="collect")


@graph.node(max_concurrency=8)
async def count(text: str) -> int:
    """Count the words of one text."""
    if not text:
        raise ValueError("an empty text")
    return len(text.split())


@graph.node
def add(results: list[SendResult]) -> dict[str, int]:
    """Add up what the workers returned, in the order of the texts."""
    words = aggregate_send_results(results, on_failure="skip")
    return {"words": sum(words), "failed": len(results) - len(words)}


graph.edge(START, "split")


async def main() -> None:
    """Run it."""
    texts = ["one two three", "", "four five"]
    result = await Flow(graph).run({"texts": texts})
    state = result.unwrap()
    print(f"{state.words} words, {state.failed} failed")


anyio.run(main)
