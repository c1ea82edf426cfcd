"""The choice of the tasks that come next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcell.core import FlowError, NodeFailedError

from ..graph.graph import Graph
from ..stores.records import Batch, Output, TaskSpec
from ..values.command import END, START
from ..values.send import Send, SendBatch, SendResult
from .outputs import check_chosen

View = Callable[[], Any]
"""Returns the state after the step."""


@dataclass(slots=True)
class Plan:
    """The tasks of the next step, as they are collected."""

    tasks: list[TaskSpec] = field(default_factory=list)
    joins: dict[str, list[str]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    plain: set[str] = field(default_factory=set)
    """The nodes that were added by name; each of them runs once in the step."""

    def go(self, target: str | Send) -> None:
        """Add a target; Sends are never merged."""
        if isinstance(target, Send):
            self.tasks.append(TaskSpec(node=target.node, send=target))
        elif target != END and target not in self.plain:
            self.plain.add(target)
            self.tasks.append(TaskSpec.plain(target))

    def fan_out(self, batch: SendBatch) -> None:
        """Add the workers of a batch; of an empty one the aggregator."""
        aggregator = batch.aggregator_node or ""
        if not batch.sends:
            self.tasks.append(TaskSpec(node=aggregator, results=[]))
            return
        self.tasks += [
            TaskSpec(node=send.node, send=send, batch=len(self.batches))
            for send in batch.sends
        ]
        self.batches.append(
            Batch(
                aggregator=aggregator,
                on_failure=batch.on_failure,
                min_success=batch.min_success,
            )
        )


def first_tasks(graph: Graph[Any], view: View) -> Plan:
    """Return the tasks of a thread's first step. Raises as `next_tasks`."""
    plan = Plan()
    _normal_way(graph, START, plan, view, {})
    return plan


def next_tasks(
    graph: Graph[Any],
    done: Sequence[tuple[TaskSpec, Output]],
    joins: Mapping[str, Sequence[str]],
    collected: Mapping[int, tuple[str, Sequence[SendResult]]],
    view: View,
) -> Plan:
    """Return the tasks that follow a step.

    Args:
        graph: The graph of the thread.
        done: The step's tasks in their order, and their outputs.
        joins: The sources that ended in earlier steps, by the key of their join.
        collected: The aggregator and the results of each batch of the step.
        view: Returns the state after the step.

    Raises:
        NodeFailedError: A route raised.
        GraphError: A route chose what it may not.
    """
    if any(output.ends for _, output in done):
        return Plan()
    plan = Plan(joins={key: list(ended) for key, ended in joins.items()})
    chosen: dict[str, list[str | Send]] = {}
    finished: set[int] = set()
    for spec, output in done:
        if spec.batch is not None:
            if spec.batch not in finished:
                finished.add(spec.batch)
                aggregator, results = collected[spec.batch]
                task = TaskSpec(node=aggregator, results=list(results))
                plan.tasks.append(task)
        elif output.batch is not None:
            plan.fan_out(output.batch)
        elif output.goto is not None:
            for target in output.goto:
                plan.go(target)
        else:
            _normal_way(graph, spec.node, plan, view, chosen)
    return plan


def _normal_way(
    graph: Graph[Any],
    source: str,
    plan: Plan,
    view: View,
    chosen: dict[str, list[str | Send]],
) -> None:
    route = graph.routes.get(source)
    if route is not None:
        if source not in chosen:
            chosen[source] = _choose(graph, source, view)
            for target in chosen[source]:
                plan.go(target)
        return
    for target in graph.edges.get(source, ()):
        plan.go(target)
    for join in graph.joins:
        if source in join.sources:
            ended = plan.joins.setdefault(join.key, [])
            if source not in ended:
                ended.append(source)
            if len(ended) == len(set(join.sources)):
                del plan.joins[join.key]
                plan.go(join.target)


def _choose(graph: Graph[Any], source: str, view: View) -> list[str | Send]:
    route = graph.routes[source]
    try:
        choice = route.choose(view())
    except FlowError:
        raise
    except Exception as error:
        raise NodeFailedError(
            f"the route from {source!r} failed with {type(error).__name__}",
            hint="a route looks at the state and returns a target",
            details={"node": source, "exception": type(error).__name__},
        ) from error
    return check_chosen(graph, source, route.targets, choice)
