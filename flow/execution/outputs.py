"""The values that nodes return, read and checked for their step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from toolcell.core import GraphError, InvalidInputError

from ..graph.graph import Graph
from ..state.patch import Pieces, join, split, value_of
from ..stores.records import Output, TaskSpec
from ..values.command import END, Command, End, is_command, normalize_node_output
from ..values.json_values import jsonable
from ..values.limits import FlowLimits
from ..values.send import Send, SendBatch, normalize_sends
from .operations import check_bytes


@dataclass(slots=True, kw_only=True)
class Returned:
    """An output, and its update as the state takes it."""

    output: Output
    """The output without its update."""

    update: dict[str, Pieces] = field(default_factory=dict)

    @property
    def record(self) -> Output:
        """The output with its update, as it is stored."""
        update = {name: value_of(value) for name, value in self.update.items()}
        return self.output.model_copy(update={"update": update})


def update_of(output: Output) -> dict[str, Pieces]:
    """Return the update of an output that was read back."""
    return {name: split(value) for name, value in output.update.items()}


def read_output(
    output: Any,
    graph: Graph[Any],
    spec: TaskSpec,
    limits: FlowLimits,
    outer: Sequence[Graph[Any]] = (),
) -> Returned:
    """Return a node's output as its step takes it.

    Args:
        output: The value that the node returned.
        graph: The graph of the node.
        spec: The task.
        limits: The bounds of the thread.
        outer: The graphs that the graph is inside of, the outermost first.

    Raises:
        InvalidInputError: It cannot be used.
        GraphError: It leads to a node that there is not, or that needs arguments.
        FlowLimitError: It is too large.
    """
    if spec.batch is not None:
        returned = Returned(output=Output(result=_result(output, spec)))
    else:
        returned = _steered(output, graph, spec, outer)
    fields = [b'"%s":%s' % (k.encode(), join(v)) for k, v in returned.update.items()]
    rest = returned.output.model_dump_json().encode()
    check_bytes("record_bytes", limits.record_bytes, len(b",".join(fields) + rest))
    return returned


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


def _steered(
    output: Any, graph: Graph[Any], spec: TaskSpec, outer: Sequence[Graph[Any]]
) -> Returned:
    if isinstance(output, SendBatch):
        check_targets(graph, output.sends)
        if output.aggregator_node is None:
            return Returned(output=Output(goto=list(output.sends)))
        _check_aggregator(graph, output.aggregator_node)
        return Returned(output=Output(batch=output))
    sends = None if is_command(output) else normalize_sends(output)
    if sends is not None:
        check_targets(graph, sends)
        return Returned(output=Output(goto=list(sends) or None))
    update, command = normalize_node_output(output, graph.schema.model)
    target = graph
    goto = None
    if command is not None:
        target = _target_graph(command, graph, spec, outer)
        goto = command.targets if command.has_goto else None
        check_targets(target, goto or ())
    pieces = target.schema.encode_update(update, spec.node)
    steered = Output.steering(
        goto,
        ends=isinstance(command, End),
        graph=None if target is graph else target.name,
    )
    return Returned(output=steered, update=pieces)


def _target_graph(
    command: Command, graph: Graph[Any], spec: TaskSpec, outer: Sequence[Graph[Any]]
) -> Graph[Any]:
    """Return the graph that a Command is for: its own, or one that it is inside of."""
    if command.has_resume:
        raise InvalidInputError(
            f"node {spec.node!r} returned an answer",
            hint="give answers to flow.resume",
        )
    if command.graph is None:
        return graph
    inside: list[Graph[Any]] = [*outer, graph]
    each: Graph[Any]
    for each in reversed(inside):
        if command.graph == each.name:
            return each
    raise InvalidInputError(
        f"node {spec.node!r} commands the graph {command.graph!r}",
        hint=f"it is inside of {', '.join(repr(each.name) for each in inside)}",
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
    for target in targets:
        name = target.node if isinstance(target, Send) else target
        if name not in allowed:
            problem = f"the route from {source} chose {name!r}, not one of its targets"
            raise GraphError(
                problem,
                hint=f"targets: {', '.join(allowed)}",
                details={"problems": [problem]},
            )
    check_targets(graph, targets)
    return targets
