"""Sends and batches: each runs, all results come back, in their order."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolcell.flow import (
    START,
    Command,
    Flow,
    FlowLimits,
    Graph,
    Send,
    SendBatch,
    SendResult,
    aggregate_send_results,
    goto,
    interrupt,
    scatter,
)

from ...support.flow.graphs import Log, said

pytestmark = pytest.mark.anyio


def batched(worker: Any, count: int, **options: Any) -> Graph[Log]:
    """Return a graph that sends a batch to a worker and adds up what comes back."""
    graph = Graph(Log, name="g")
    graph.node(worker, name="worker")

    @graph.node
    def fan(state: Log) -> SendBatch:
        sends = scatter("worker", range(count), key="n")
        return SendBatch(sends=sends, aggregator_node="gather", **options)

    @graph.node
    def gather(state: Log, results: list[SendResult]) -> dict[str, Any]:
        values = aggregate_send_results(results, on_failure="skip")
        failed = [result for result in results if not result.success]
        kinds = [f"{each.error_kind}" for each in failed]
        timed = all(result.duration_ms is not None for result in results)
        return {"items": values, "log": kinds, "note": str(timed)}

    graph.edge(START, "fan")
    return graph


@pytest.mark.promise("LC-36", "LC-37", "LC-38", "RL-19", "flow-17")
async def test_a_thousand_sends_are_bounded_and_in_order() -> None:
    running = peak = 0

    async def worker(n: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        return n * n

    flow = Flow(batched(worker, 1000), limits=FlowLimits(max_concurrency=7))
    state = (await flow.run({})).unwrap()

    assert state.items == [n * n for n in range(1000)]
    assert 2 <= peak <= 7
    assert state.note == "True"


async def test_a_node_may_have_a_lower_bound_of_its_own() -> None:
    running = peak = 0
    graph = Graph(Log, name="g")

    @graph.node
    def fan(state: Log) -> list[Send]:
        return scatter("worker", range(20))

    @graph.node(max_concurrency=2)
    async def worker(item: int) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await anyio.lowlevel.checkpoint()
        running -= 1

    graph.edge(START, "fan")
    await Flow(graph).run({})

    assert peak == 2


@pytest.mark.promise("LC-37", "flow-18")
async def test_one_failed_worker_fails_the_step_and_runs_again_alone() -> None:
    ran: list[int] = []

    def worker(n: int) -> int:
        ran.append(n)
        if n == 3 and ran.count(3) == 1:
            raise ValueError("hunter2")
        return n

    flow = Flow(batched(worker, 100))
    result = await flow.run({}, "t")

    assert (result.status, len(ran)) == ("failed", 100)
    assert result.error is not None
    assert "hunter2" not in result.error.model_dump_json()
    assert (await flow.resume("t")).unwrap().items == list(range(100))
    assert ran[100:] == [3]


@pytest.mark.promise("LC-37", "LC-38", "LC-44", "flow-18")
async def test_failures_can_be_collected() -> None:
    def worker(n: int) -> int:
        if n == 3:
            raise ValueError
        return n

    state = (await Flow(batched(worker, 100, on_failure="collect")).run({})).unwrap()

    assert state.items == [n for n in range(100) if n != 3]
    assert state.log == ("flow.node",)


@pytest.mark.promise("LC-44", "flow-18")
async def test_too_few_successes_fail_and_are_tried_again() -> None:
    broken = True

    def worker(n: int) -> int:
        if n == 3 and broken:
            raise ValueError
        return n

    graph = batched(worker, 100, on_failure="collect", min_success=0.995)
    flow = Flow(graph)
    result = await flow.run({}, "t")

    assert result.error is not None
    assert "99 of 100 workers" in result.error.message
    broken = False
    assert len((await flow.resume("t")).unwrap().items) == 100


@pytest.mark.promise("LC-28", "RL-16", "RL-19", "flow-19")
async def test_a_worker_that_asks_loses_nobodys_result() -> None:
    ran: list[int] = []

    def worker(n: int) -> Any:
        ran.append(n)
        return interrupt("how many?") if n == 1 else n

    flow = Flow(batched(worker, 3))
    paused = await flow.run({}, "t")

    [state] = paused.waiting
    assert state.node_id == "worker"
    assert state.pending_nodes == ["worker"]
    assert state.partial_results == {"2.0": 0, "2.2": 2}
    done = await flow.resume("t", {state.interrupt.interrupt_id: 10})
    assert done.unwrap().items == [0, 10, 2]
    assert ran.count(0) == ran.count(2) == 1


@pytest.mark.promise("LC-42", "flow-04")
async def test_nothing_to_fan_out_over_still_aggregates() -> None:
    def worker(n: int) -> int:
        return n

    state = (await Flow(batched(worker, 0)).run({"items": [1]})).unwrap()
    assert state.items == []


@pytest.mark.promise("LC-42", "flow-04")
async def test_an_empty_list_of_sends_goes_the_normal_way() -> None:
    graph = Graph(Log, name="g")

    @graph.node
    def fan(state: Log) -> list[Send]:
        return []

    @graph.node
    def after(state: Log) -> dict[str, Any]:
        return said("after")

    graph.edge(START, "fan").edge("fan", "after")
    assert (await Flow(graph).run({})).unwrap().log == ("after",)


@pytest.mark.promise("LC-36", "LC-41")
async def test_plain_sends_are_ordinary_tasks() -> None:
    graph = Graph(Log, name="g")

    @graph.node
    def fan(state: Log) -> SendBatch:
        return SendBatch(sends=scatter("worker", ["a", "b"]))

    @graph.node
    def worker(item: str, index: int, total: int) -> dict[str, Any]:
        return said(f"{item}{index}/{total}")

    @graph.node
    def after(state: Log) -> dict[str, Any]:
        return said("after")

    graph.edge(START, "fan").edge("worker", "after")
    state = (await Flow(graph).run({})).unwrap()
    assert state.log == ("a0/2", "b1/2", "after")


@pytest.mark.promise("LC-36")
@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({}, "'n' is missing"),
        ({"n": "x"}, "n: Input should be a valid integer"),
        ({"n": 1, "m": 2}, "takes no 'm'"),
    ],
)
async def test_a_payload_has_to_fit_the_worker(payload: Any, why: str) -> None:
    graph = Graph(Log, name="g")

    @graph.node
    def fan(state: Log) -> Send:
        return Send("worker", payload)

    @graph.node
    def worker(n: int) -> None: ...

    graph.edge(START, "fan")
    result = await Flow(graph).run({})

    assert result.error is not None
    assert why in result.error.message


@pytest.mark.promise("LC-37")
@pytest.mark.parametrize("output", [goto("fan"), Send("worker", {"n": 1})])
async def test_a_worker_of_a_batch_gives_no_commands(output: Command | Send) -> None:
    def worker(n: int) -> Any:
        return output

    result = await Flow(batched(worker, 1)).run({})

    assert result.error is not None
    assert "returned a command" in result.error.message


@pytest.mark.promise("LC-36")
async def test_ids_of_sends_are_the_same_in_every_run() -> None:
    found: list[list[str]] = []
    for _ in range(2):
        graph = Graph(Log, name="g")

        @graph.node
        def fan(state: Log) -> list[Send]:
            made = scatter("worker", range(3))
            found.append([each.send_id for each in made])
            return made

        @graph.node
        def worker(item: int) -> None: ...

        graph.edge(START, "fan")
        await Flow(graph).run({}, "t")

    assert found[0] == found[1]
    assert len(set(found[0])) == 3
