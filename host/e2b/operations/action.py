"""Actions: what clients do, as calls of their agents through the guard.

An action is one row of the table in `table.py`: a name, the form of its arguments, and
a body. The body is a function of the arguments that the guard admitted, which a person
may have edited. It never sees the request, so nothing else can run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from toolcell.core import CellLostError
from toolcell.core.event_loop import give_way, is_large
from toolcell.core.models import problems_of
from toolcell.guard import ActionGuard, called_by
from toolcell.tools import Operation, RunContext, ToolExecutor
from toolcell.tools.spi import NO_COST

from ...config.sandbox_api import SandboxAPIConfig
from ...http.tokens import Token
from ..protocol.errors import APIError
from ..state.sandbox import Sandbox
from ..state.sandboxes import Sandboxes
from ..state.snapshots import Snapshots


class ActionArguments(BaseModel):
    """The arguments of an action, as policies and people see them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SandboxArguments(ActionArguments):
    """The arguments of an action in a sandbox."""

    sandbox_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The things that an action may use besides its arguments."""

    token: Token
    """The token of the client."""

    operation: Operation
    """Takes what it cost, and the way to end it."""

    guard: ActionGuard | None
    settings: SandboxAPIConfig
    sandboxes: Sandboxes
    snapshots: Snapshots

    def sandbox(self, arguments: SandboxArguments) -> Sandbox:
        """Return the sandbox of an action. Raises APIError: there is none."""
        return self.sandboxes.held(self.token, arguments.sandbox_id)


A = TypeVar("A", bound=ActionArguments)
R = TypeVar("R")
Body = Callable[[Scene, A], AbstractAsyncContextManager[R]]
"""Does what the arguments say. It yields what the client reads or writes, and may wait
for its end after that."""


@dataclass(frozen=True, slots=True)
class Action(Generic[A, R]):
    """One row of the table of actions."""

    name: str
    """The name that rules know."""

    arguments: type[A]
    body: Body[A, R]
    cost: Callable[[Sandbox, A], Mapping[str, int]] | None = None
    """Returns the most that it may use; None: nothing that is counted."""


class Actions:
    """Leads actions through the guard.

    Args:
        executor: Has the pipeline.
        settings: The limits.
        sandboxes: The open sandboxes.
        snapshots: What sandboxes can be made from.
    """

    def __init__(
        self,
        executor: ToolExecutor,
        settings: SandboxAPIConfig,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
    ) -> None:
        self._operation, self._guard = executor.operation, executor.guard
        self._settings = settings
        self._sandboxes = sandboxes
        self._snapshots = snapshots

    @asynccontextmanager
    async def do(
        self, action: Action[A, R], token: Token, wanted: A
    ) -> AsyncIterator[R]:
        """Do an action, if the guard admits it; one that finds its cell lost ends it.

        Args:
            action: The action.
            token: The token of the client.
            wanted: What the client asks for.

        Yields:
            What its body yields.

        Raises:
            GuardDeniedError: It is refused.
            CallCancelledError: A person cancelled it while it waited.
            APIError: It cannot be done, or what a person made of it.
        """
        run_id, cost, sandbox = f"token-{token.id}", NO_COST, None
        if isinstance(wanted, SandboxArguments):
            run_id = wanted.sandbox_id
            sandbox = self._sandboxes.held(token, wanted.sandbox_id)
            if action.cost is not None:
                cost = action.cost(sandbox, wanted)
        seconds = self._settings.approval_seconds
        arguments = wanted.model_dump(mode="json")
        if is_large(arguments):
            await give_way()
        try:
            async with AsyncExitStack() as stack:
                admission = self._operation(
                    action.name,
                    arguments,
                    agent_id=token.agent_id,
                    run=RunContext(run_id=run_id, approval_seconds=seconds),
                    names_only=("env",),
                    cost=cost,
                )
                with called_by(f"token {token.id}"):
                    operation = await stack.enter_async_context(admission)
                scene = Scene(
                    token=token,
                    operation=operation,
                    guard=self._guard,
                    settings=self._settings,
                    sandboxes=self._sandboxes,
                    snapshots=self._snapshots,
                )
                given = operation.arguments
                admitted = _checked(action.arguments, given, "what was approved")
                async with action.body(scene, admitted) as made:
                    yield made
        except CellLostError:
            # A command can be lost alone.
            if sandbox is not None and not sandbox.is_alive:
                sandbox.end("lost")
            raise


def as_arguments(model: type[A], **values: object) -> A:
    """Return the arguments of an action. Raises APIError 400: they are none."""
    return _checked(model, values, "the request")


def _checked(model: type[A], values: Mapping[str, object], what: str) -> A:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        field, reason = problems_of(error)[0]
        where = f" {field}:" if field else ""
        raise APIError(400, f"{what} cannot be done:{where} {reason}") from None
