"""The values that nodes return, read and checked for their step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcell.core import GraphError, InvalidInputError

from ..graph.graph import Graph
from ..state.patch import Pieces, split, value_of
from ..stores.records import Output, TaskSpec
from ..values.command import END, Command, End, is_command, normalize_node_output
from ..values.json_values import jsonable
from ..values.limits import FlowLimits
from ..values.send import Send, SendBatch, normalize_sends
from .operations import check_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """An output, and its update as the state takes it."""

    record: Output
    update: dict[str, Pieces] = field(default_factory=dict)


def update_of(output: Output) -> dict[str, Pieces]:
    """Return the update of an output that was read back."""
    return {name: split(value) for name, value in output.update.items()}


def read_output(
    output: Any, graph: Graph[Any], spec: TaskSpec, limits: FlowLimits
) -> Returned:
    """Return a node's output as its step takes it.

    Raises:
        InvalidInputError: It cannot be used.
        GraphError: It leads to a node that there is not, or that needs arguments.
        FlowLimitError: It is too large.
    """
    if spec.batch is not None:
        made = Returned(record=Output(result=_result(output, spec)))
    else:
        made = _steered(output, graph, spec)
    check_size("record_bytes", limits.record_bytes, made.record.model_dump(mode="json"))
    return made


def _result(output: Any, spec: TaskSpec) -> Any:
    if is_command(output) or isinstance(output, SendBatch) or normalize_sends(output):
        raise InvalidInputError(
            f"the worker {spec.node!r} of a batch returned a command",
            hint="a worker returns its result; the aggregator says where to go",
        )
    try:
        return jsonable(output)
    except ValueError as error:
        raise InvalidInputError(
            f"the result of {spec.node!r} has no JSON form: {error}",
            hint="return values that JSON has",
        ) from None


def _steered(output: Any, graph: Graph[Any], spec: TaskSpec) -> Returned:
    if isinstance(output, SendBatch):
        check_targets(graph, output.sends)
        if output.aggregator_node is None:
            return Returned(record=Output(goto=list(output.sends)))
        _check_aggregator(graph, output.aggregator_node)
        return Returned(record=Output(batch=output))
    sends = normalize_sends(output)
    if sends is not None:
        check_targets(graph, sends)
        return Returned(record=Output(goto=list(sends) or None))
    update, command = normalize_node_output(output, graph.schema.model)
    pieces = graph.schema.encode_update(update, spec.node)
    goto = None
    if command is not None:
        _check_command(command, graph, spec)
        goto = command.targets if command.has_goto else None
        check_targets(graph, goto or ())
    record = Output(
        update={name: value_of(each) for name, each in pieces.items()},
        goto=goto,
        ends=isinstance(command, End),
    )
    return Returned(record=record, update=pieces)


def _check_command(command: Command, graph: Graph[Any], spec: TaskSpec) -> None:
    if command.graph not in (None, graph.name):
        raise InvalidInputError(
            f"node {spec.node!r} commands the graph {command.graph!r}",
            hint=f"this is {graph.name!r}, and is inside of no other",
        )
    if command.has_resume:
        raise InvalidInputError(
            f"node {spec.node!r} returned an answer",
            hint="give answers to flow.resume",
        )


def _check_aggregator(graph: Graph[Any], name: str) -> None:
    node = graph.nodes.get(name)
    if node is None or not node.signature.takes_results or node.signature.arguments:
        raise GraphError(
            f"{name!r} cannot be an aggregator",
            hint="it is a node that takes `list[SendResult]`, and no arguments",
            details={"problems": [f"{name} takes no list[SendResult]"]},
        )


def check_targets(graph: Graph[Any], targets: Sequence[str | Send]) -> None:
    """Check that a step can go to the targets. Raises GraphError: it cannot."""
    for target in targets:
        if target == END:
            continue
        name = target if isinstance(target, str) else target.node
        if name not in graph.nodes:
            problem = f"there is no node {name!r}"
        elif isinstance(target, str) and graph.nodes[name].signature.arguments:
            problem = f"{name} needs arguments: reach it by a Send"
        else:
            continue
        raise GraphError(
            problem,
            hint=f"nodes: {', '.join(graph.nodes)}",
            details={"problems": [problem]},
        )


def check_chosen(
    graph: Graph[Any], source: str, allowed: Sequence[str], chosen: Any
) -> list[str | Send]:
    """Return what a route chose, as a list. Raises GraphError: it may not."""
    targets = [chosen] if isinstance(chosen, str | Send) else list(chosen or ())
    for each in targets:
        name = each.node if isinstance(each, Send) else each
        if name not in allowed:
            problem = f"the route from {source} chose {name!r}, not one of its targets"
            raise GraphError(
                problem,
                hint=f"targets: {', '.join(allowed)}",
                details={"problems": [problem]},
            )
    check_targets(graph, targets)
    return targets
