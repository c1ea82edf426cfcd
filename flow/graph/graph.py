"""A graph: nodes and the ways between them; data, until a Flow runs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, overload

import anyio
from pydantic import BaseModel, JsonValue

from toolcell.core import GraphError
from toolcell.tools import RetryPolicy

from ..state.fields import Schema
from ..values.command import END, START
from ..values.json_values import digest
from .nodes import Child, Chosen, Join, Node, Route
from .signature import Signature

S = TypeVar("S", bound=BaseModel)
_F = TypeVar("_F", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Migrate = Callable[[dict[str, JsonValue], str], dict[str, JsonValue]]


class Graph(Generic[S]):
    """Nodes and the ways between them, for a `Flow` to run.

    A graph holds no state of a thread and may serve several Flows. The nodes of one
    step all see the state from before the step; their updates are merged when the step
    commits. Nodes and ways may be added in any order, but before a Flow is made: it
    checks the graph once, then.

    Args:
        state: The model of the state. An update is checked field by field; validators
            of the whole model see the first state alone.
        name: 1 to 64 of `a-z A-Z 0-9 _ -`.
        version: Your own version of the graph, stored with each thread; default "1".
        migrate: Makes the state of another version fit: it gets the state as JSON and
            its version, and returns the state as JSON. None: threads of another version
            go on if their state and open tasks fit.

    Raises:
        GraphError: The name cannot be used, the state cannot be stored as JSON, or a
            field has two reducers.
    """

    def __init__(
        self,
        state: type[S],
        *,
        name: str,
        version: str = "1",
        migrate: Migrate | None = None,
    ) -> None:
        self.name = _checked(name, "graph")
        self.version = version
        self.migrate = migrate
        self.schema = Schema(state)
        self.nodes: dict[str, Node] = {}
        self.edges: dict[str, list[str]] = {}
        self.joins: list[Join] = []
        self.routes: dict[str, Route] = {}

    @overload
    def node(
        self,
        function: _F,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        max_concurrency: int | None = None,
    ) -> _F: ...
    @overload
    def node(
        self,
        function: Graph[Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        max_concurrency: int | None = None,
        enter: Callable[..., Any] | None = None,
        leave: Callable[[Any], Any] | None = None,
    ) -> Graph[Any]: ...
    @overload
    def node(
        self,
        function: None = None,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        max_concurrency: int | None = None,
    ) -> Callable[[_F], _F]: ...
    def node(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        max_concurrency: int | None = None,
        enter: Callable[..., Any] | None = None,
        leave: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Add a function as a node, async or not, or a graph; usable as a decorator.

        Its parameters are filled by type: the state, as its model or as `BaseModel`;
        `NodeContext`; `Send`, the one that started it; `list[SendResult]`, as an
        aggregator. Every other parameter is an argument that a Send gives it by name.
        Unknown arguments are refused, but for `index` and `total` of `scatter`;
        `**rest` takes all.

        A graph runs as one task of the outer one, to its end. Its steps are stored as
        those of the outer graph are; its questions and failures are those of the node.

        Args:
            function: The node; it is returned as it is.
            name: Default: the function's, or the graph's.
            retry: Tries the node again when it raises, but for errors of toolcell that
                are not `retryable`. Recorded operations are not done again, but for
                the failures that the attempt ended with. None: one attempt.
            timeout: Seconds of one attempt. When it is reached the attempt fails; calls
                that have begun are seen through and recorded, and a plain function in a
                thread runs on. None: no limit.
            max_concurrency: Tasks of this node at once. When it is reached further ones
                wait. None: as many as the thread may have.
            enter: For a graph: makes its first state, quickly and without effects. Its
                parameters are filled as those of a node; one without a type is the
                state. None: it is the state of the outer graph, of the same model.
            leave: For a graph: takes its last state, and returns what a node returns.
                None: its fields that changed replace those of the outer state, also
                where these have a reducer; in a batch all of them are the result.

        Raises:
            GraphError: The name is taken or cannot be used, a number is below its
                least, or a parameter cannot be filled.
        """

        limits: dict[str, Any] = {
            "retry": retry,
            "timeout": timeout,
            "max_concurrency": max_concurrency,
        }

        def add(added: Any) -> Any:
            if isinstance(added, Graph):
                self._add_graph(added, name or added.name, enter, leave, limits)
                return added
            own = str(name or getattr(added, "__name__", ""))
            if enter is not None or leave is not None:
                raise _wrong(f"{own}: enter and leave are for graphs")
            signature = Signature(added, self.schema.model)
            self._add(Node(name=own, function=added, signature=signature, **limits))
            return added

        return add if function is None else add(function)

    def _add_graph(
        self,
        child: Graph[Any],
        name: str,
        enter: Callable[..., Any] | None,
        leave: Callable[[Any], Any] | None,
        limits: Mapping[str, Any],
    ) -> None:
        model = self.schema.model
        if child.schema.model is not model and (enter is None or leave is None):
            raise _wrong(f"{name}: a graph of another state needs enter and leave")
        function = enter or (lambda state: state)
        signature = Signature(function, model, untyped=model)
        added = Node(
            name=name,
            function=function,
            signature=signature,
            child=Child(child, leave),
            **limits,
        )
        if signature.takes_context or added.is_async:
            raise _wrong(f"{name}: enter is a plain function without a context")
        self._add(added)

    def _add(self, node: Node) -> None:
        name = _checked(node.name, "node")
        if name in self.nodes:
            raise _wrong(f"there are two nodes {name!r}")
        if (node.timeout is not None and not node.timeout > 0) or (
            node.max_concurrency is not None and node.max_concurrency < 1
        ):
            raise _wrong(f"{name}: timeout is above 0, max_concurrency at least 1")
        self.nodes[name] = node

    def edge(self, source: str | Sequence[str], target: str | Sequence[str]) -> Self:
        """Go from each task of `source` to `target`.

        Args:
            source: A node, or `START`. Several are a join: the target runs once, when
                each of them has ended since it last ran.
            target: A node, or `END`. Several run in parallel.
        """
        targets = [target] if isinstance(target, str) else list(target)
        sources = [source] if isinstance(source, str) else list(source)
        for end in targets:
            if len(sources) == 1:
                self.edges.setdefault(sources[0], []).append(end)
            else:
                self.joins.append(Join(tuple(sources), end))
        return self

    def route(
        self, source: str, choose: Callable[[S], Chosen], targets: Collection[str]
    ) -> Self:
        """Choose where to go instead of an edge.

        A Command's `goto` goes before routes, routes before edges.

        Args:
            source: A node, or `START`.
            choose: Sees the state after the step, and returns a target, a Send, several
                of them, or None: the branch ends. It is called once for each step, and
                must not do anything else.
            targets: All that it may choose.

        Raises:
            GraphError: The source has a route already.
        """
        if source in self.routes:
            raise _wrong(f"there are two routes from {source!r}")
        self.routes[source] = Route(choose, tuple(targets))
        return self

    def check(self) -> None:
        """Check that the graph can be run.

        Raises:
            GraphError: It cannot; `details["problems"]` lists every reason.
        """
        self._check_inside(())

    def _check_inside(self, outer: tuple[Graph[Any], ...]) -> None:
        problems = [*self._wrong_ways(), *self._missing_arguments()]
        problems += self._wrong_graphs((*outer, self))
        if not {START} & {*self.edges, *self.routes}:
            problems.insert(0, "no way leads from START")
        problems += [
            f"{join.target} waits for itself"
            for join in self.joins
            if join.target in join.sources
        ]
        if problems:
            unique = list(dict.fromkeys(problems))
            raise GraphError(
                f"the graph {self.name!r} cannot be run: {'; '.join(unique)}",
                hint="a node that needs arguments is reached by a Send",
                details={"problems": unique},
            )

    def node_limiters(self) -> dict[str, anyio.CapacityLimiter]:
        """Return a new limiter for each node with a `max_concurrency`, by its name."""
        return {
            name: anyio.CapacityLimiter(node.max_concurrency)
            for name, node in self.nodes.items()
            if node.max_concurrency is not None
        }

    def _wrong_ways(self) -> Iterator[str]:
        for source, targets in self._ways():
            if source != START and source not in self.nodes:
                yield f"a way leads from {source!r}, which is no node"
            for target in targets:
                if target != END and target not in self.nodes:
                    yield f"{source} leads to {target!r}, which is no node"

    def _wrong_graphs(self, outer: tuple[Graph[Any], ...]) -> Iterator[str]:
        for name, node in self.nodes.items():
            if node.child is None:
                continue
            if node.child.graph in outer:
                yield f"{name} is inside of itself"
                continue
            try:
                node.child.graph._check_inside(outer)
            except GraphError as error:
                yield from (
                    f"{name}: {problem}" for problem in error.details["problems"]
                )

    def _missing_arguments(self) -> Iterator[str]:
        for source, target in self._plain_ways():
            missing = self.nodes[target].signature.arguments
            if missing:
                yield f"{source} leads to {target}, which needs {', '.join(missing)}"

    def _ways(self) -> list[tuple[str, Sequence[str]]]:
        ways: list[tuple[str, Sequence[str]]] = list(self.edges.items())
        ways += [(source, route.targets) for source, route in self.routes.items()]
        return ways + [(s, [join.target]) for join in self.joins for s in join.sources]

    def _plain_ways(self) -> list[tuple[str, str]]:
        """Return the ways that give a node nothing but the state."""
        edges = [
            (source, target) for source, all_ in self.edges.items() for target in all_
        ]
        joins = [("+".join(join.sources), join.target) for join in self.joins]
        return [(s, t) for s, t in edges + joins if t in self.nodes]

    @property
    def shape(self) -> str:
        """16 digits that change with nodes, what they take, ways and the state's type.

        The code of the nodes is not in it.
        """
        return digest(
            {
                "name": self.name,
                "nodes": {name: _described(node) for name, node in self.nodes.items()},
                "ways": [[source, list(targets)] for source, targets in self._ways()],
                "state": {n: f.schema() for n, f in self.schema.fields.items()},
            }
        )

    def to_mermaid(self) -> str:
        """Return the text of a mermaid diagram."""
        lines = ["flowchart TD"]
        lines += [f"    {name}[{name}]" for name in self.nodes]
        lines += [f"    {s} --> {t}" for s, all_ in self.edges.items() for t in all_]
        for source, route in self.routes.items():
            lines += [f"    {source} -.-> {target}" for target in route.targets]
        for join in self.joins:
            lines += [f"    {source} --> {join.target}" for source in join.sources]
        return "\n".join(lines) + "\n"


def _checked(name: str, what: str) -> str:
    if _NAME.fullmatch(name) is None or name in (START, END):
        raise _wrong(f"{name!r} is no name of a {what}")
    return name


def _described(node: Node) -> list[Any]:
    described: list[Any] = node.signature.described()
    return described if node.child is None else [*described, node.child.graph.shape]


def _wrong(problem: str) -> GraphError:
    return GraphError(
        problem,
        hint="names are 1 to 64 letters, digits, _ and -, each used once",
        details={"problems": [problem]},
    )


def migrated(
    graph: Graph[Any], state: Mapping[str, JsonValue], version: str
) -> dict[str, JsonValue]:
    """Return a stored state, migrated to the version of the graph."""
    if version == graph.version or graph.migrate is None:
        return dict(state)
    return graph.migrate(dict(state), version)
