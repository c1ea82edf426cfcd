"""One call of an MCP client, from its request to its result."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolcell.core import ErrorInfo, ToolcellError, ToolResult
from toolcell.core.event_loop import read_large
from toolcell.tools import RunContext

from ..runtime.caller_approval import caller_handler
from ..runtime.host import Host
from .artifacts import CallArtifacts
from .caller import Caller, ClientElicitation, Context, take_answer, waits_for_approval
from .progress import ProgressRelay
from .results import ToolDefinitions, error_envelope, failure, success


class MCPCall:
    """One call of an MCP client.

    A call that needs approval may end without a result: `parked` is then true, and
    `question` is the answer to the client.

    Args:
        host: The host; open.
        definitions: The definitions of its tools.
        ctx: The request.
        params: The tool and its arguments.
        caller: The caller of the request.
        stop: Cancels the call from within, to park it.
    """

    def __init__(
        self,
        host: Host,
        definitions: ToolDefinitions,
        ctx: Context,
        params: types.CallToolRequestParams,
        caller: Caller,
        stop: Callable[[], None],
    ) -> None:
        self._host = host
        self._definitions = definitions
        self._ctx = ctx
        self._params = params
        self._caller = caller
        self.parked = False
        """True if the call waits for a person, and its client makes it again."""

        self._stop = stop
        self._wait = host.config.server.approval_seconds
        self._ask = ClientElicitation(
            ctx,
            caller,
            asked=params.input_responses is not None,
            redactor=host.approvals.redactor,
            seconds=self._wait,
            park=self._park,
        )
        self._artifacts = CallArtifacts()
        # It is used only after the call succeeded, so the agent may see it.
        self._tool = host.registry.snapshot().get(params.name)

    def _park(self) -> None:
        self.parked = True
        self._stop()

    async def make(self) -> types.CallToolResult:
        """Make the call; a failed or refused call is a result.

        Raises:
            MCPError: The agent sees no such tool.
            InvalidInputError: An argument is not JSON.
        """
        await take_answer(self._host, self._caller, self._params)
        token = caller_handler.set(self._ask)
        try:
            result = await self._outcome()
        finally:
            caller_handler.reset(token)
        return await self._answer(result)

    def question(self) -> types.CallToolResult | types.InputRequiredResult:
        """Return the answer to the client of a parked call."""
        request = self._ask.request
        assert request is not None
        if self._ask.asks_by_result:
            return self._ask.question()
        return failure(waits_for_approval(request))

    async def _outcome(self) -> ToolResult:
        """Make the call; send its progress if the client asked for it."""
        relay = None
        if self._ctx.meta and "progress_token" in self._ctx.meta:
            relay = ProgressRelay(self._ctx.session)
        call = partial(
            self._host.call,
            self._params.name,
            self._params.arguments,
            agent_id=self._caller.agent_id,
            # Ids of MCP requests start again in each session, so they are not unique.
            call_id=uuid.uuid4().hex,
            run=RunContext(
                run_id=self._caller.run_id,
                session=self._caller.run_id,
                approval_seconds=None if self._ask.can_ask else self._wait,
                on_progress=None if relay is None else relay.report,
                ask_user=self._ask.ask_user,
                artifacts=self._artifacts,
            ),
        )
        if relay is None:
            return await call()
        async with relay.running():
            return await call()

    async def _answer(self, result: ToolResult) -> types.CallToolResult:
        problem = result.error
        if problem is None:
            try:
                return await read_large(
                    self._caller.agent_id,
                    result.content,
                    partial(self._success, result),
                )
            except ToolcellError as error:
                problem = ErrorInfo.of(error)
        envelope = error_envelope(problem)
        if problem.kind == "tool.not_found":
            raise MCPError(types.INVALID_PARAMS, problem.message, envelope)
        request = self._ask.request
        if request and problem.details.get("reason") == "approval_unavailable":
            envelope = waits_for_approval(request)
        return failure(envelope, result)

    def _success(self, result: ToolResult) -> types.CallToolResult:
        return success(
            result,
            self._definitions.structured(self._tool, result.content),
            self._artifacts.saved,
            max_bytes=self._host.config.server.max_result_bytes,
        )
