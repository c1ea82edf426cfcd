"""The caller of an MCP request, and approval of its calls by the client's user.

How a user is asked depends on the protocol version. In sessions the server sends an
elicitation while the call waits. In version 2026-07-28 the result of the call is the
question, and the client makes the call again with the answer. A client that cannot ask
gets the id of the request, which `toolcell approvals` answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcell.core import GuardDeniedError, ToolcellError
from toolcell.guard import ApprovalRequest, Approve, Redactor, Reject, ShownRequest
from toolcell.sandbox.spi import NETWORK_ACTS
from toolcell.tools.spi import (
    USER_ASK,
    AskUser,
    UserAnswer,
    UserQuestion,
    is_nested_call,
)

from ..runtime.host import Host

Context = ServerRequestContext[Any, Any]

ANSWER_KEY = "approval"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {
            "type": "boolean",
            "title": "Approve",
            "description": "Let this call run, once.",
        },
        "reason": {
            "type": "string",
            "title": "Reason",
            "description": "Why not; the model reads it.",
            "maxLength": 2_000,
        },
    },
    "required": ["approve"],
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The agent and session behind a request, as the transport authenticated them."""

    agent_id: str
    run_id: str
    """The session: one id for all requests of a client, never shared with another."""

    name: str
    """The credential or person that calls, as the audit log names it."""

    approver: str | None
    """The name under which the client's user approves calls; None: it may not."""


CallerLookup = Callable[[Context], Caller]


class ClientElicitation:
    """Asks the user of the client whose call waits for approval.

    Args:
        ctx: The request that makes the call.
        caller: The caller of the request.
        asked: True if the user was asked about this call already.
        redactor: Finds the parts of a request that are hidden.
        seconds: Seconds that others may answer in when the user does not.
        park: Ends the call; the client makes it again, with or without the answer.
    """

    def __init__(
        self,
        ctx: Context,
        caller: Caller,
        *,
        asked: bool,
        redactor: Redactor,
        seconds: float,
        park: Callable[[], None],
    ) -> None:
        self._ctx = ctx
        self._caller = caller
        self._asked = asked
        self._redactor = redactor
        self._seconds = seconds
        self._park = park
        self.request: ApprovalRequest | None = None
        """The request that waits for an answer."""

        self._shown: ShownRequest | None = None
        """The request as the user of the client may see it."""

    @property
    def can_ask(self) -> bool:
        """True if the client can ask a user who may approve."""
        may = self._caller.approver is not None and not self._asked
        return may and _supports_forms(self._ctx)

    async def __call__(self, request: ApprovalRequest) -> Approve | Reject | None:
        if request.call.name == USER_ASK:
            # Its answer is written by somebody else.
            return None
        # Calls of a program, and its requests.
        if is_nested_call() or request.call.name in NETWORK_ACTS:
            return await self._ask_inside(request)
        self.request = request
        if not self.can_ask or self._caller.approver is None:
            return None
        reply = None
        self._shown = await self._to_show(request)
        if self._shown is not None:
            if self._is_modern:
                self._park()
                return None
            reply = await self._elicit(self._shown, self._caller.approver)
        if reply is None:
            await anyio.sleep(self._seconds)
            self._park()
        return reply

    async def _ask_inside(self, request: ApprovalRequest) -> Approve | Reject | None:
        """Ask while the program runs: calling it again would repeat all its effects."""
        if not self.can_ask or self._is_modern or self._caller.approver is None:
            return None
        shown = await self._to_show(request)
        if shown is None:
            return None
        return await self._elicit(shown, self._caller.approver)

    @property
    def ask_user(self) -> AskUser | None:
        """Asks the client's user what an MCP server wants to know; None: it cannot.

        A client of the stateless protocol would have to make the call again.
        """
        can = _supports_forms(self._ctx) and not self._is_modern
        return self._put if can else None

    async def _put(self, question: UserQuestion) -> UserAnswer:
        try:
            answer = await self._ctx.session.elicit_form(
                question.message,
                dict(question.fields),
                related_request_id=self._ctx.request_id,
            )
        except (MCPError, ValidationError) as error:
            _log.warning("a client could not ask its user: %s", type(error).__name__)
            return UserAnswer(action="cancel")
        content: Any = answer.content or {}
        return UserAnswer(action=answer.action, content=content)

    async def _to_show(self, request: ApprovalRequest) -> ShownRequest | None:
        """Return a request as the user may see it; None: the user may not."""
        # Whoever has the agent work does not count where several people approve.
        if request.approvers != 1:
            return None
        shown = await ShownRequest.read(request, self._redactor)
        # Clients may store what they show, so hidden parts are shown elsewhere.
        return None if shown.hidden else shown

    @property
    def _is_modern(self) -> bool:
        return self._ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def _elicit(
        self, shown: ShownRequest, approver: str
    ) -> Approve | Reject | None:
        try:
            answer = await self._ctx.session.elicit_form(
                shown.to_text(),
                _SCHEMA,
                related_request_id=self._ctx.request_id,
            )
        except (MCPError, ValidationError) as error:
            _log.warning("a client could not ask its user: %s", type(error).__name__)
            return None
        return reply_of(answer, approver)

    @property
    def asks_by_result(self) -> bool:
        """True if the question is the result of the call, which is then made again."""
        return self._shown is not None and self._is_modern and self.can_ask

    def question(self) -> types.InputRequiredResult:
        """Return the question as a result."""
        assert self._shown is not None
        form = types.ElicitRequestFormParams(
            message=self._shown.to_text(),
            requested_schema=_SCHEMA,
        )
        return types.InputRequiredResult(
            input_requests={ANSWER_KEY: types.ElicitRequest(params=form)},
            request_state=self._shown.request.id,
        )


def waits_for_approval(request: ApprovalRequest) -> dict[str, Any]:
    """Return the error of a call that nobody has approved yet."""
    return {
        "code": GuardDeniedError.kind,
        "message": f"this call waits for approval as {request.id} "
        "(`toolcell approvals`); make the same call again later",
        "retryable": True,
        "rule": request.rule,
        "reason": "approval_unavailable",
        "approval_id": request.id,
    }


def _supports_forms(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    offered = capabilities.elicitation if capabilities else None
    # Clients of older versions offer elicitation without naming its kind: forms.
    return offered is not None and (offered.form is not None or offered.url is None)


def reply_of(answer: types.ElicitResult, approver: str) -> Approve | Reject | None:
    """Return a user's reply; None: there is none."""
    if answer.action == "cancel":
        return None
    form = answer.content or {}
    if answer.action == "accept" and form.get("approve") is True:
        return Approve(approver=approver)
    reason = form.get("reason")
    return Reject(approver=approver, reason=reason if isinstance(reason, str) else "")


async def take_answer(
    host: Host, caller: Caller, params: types.CallToolRequestParams
) -> None:
    """Record the answer that a repeated call brings along to a request of its agent.

    The call then continues, and finds the approval or refusal like any other.
    """
    answer = (params.input_responses or {}).get(ANSWER_KEY)
    if caller.approver is None or not isinstance(answer, types.ElicitResult):
        return
    reply = reply_of(answer, caller.approver)
    request_id = params.request_state or ""
    if reply is None or request_id not in await host.approvals.waiting(caller.agent_id):
        return
    found = await host.approvals.find(request_id)
    if found is None:
        return
    request = found.request
    if isinstance(reply, Approve) and request.approvers > 1:
        return
    try:
        await host.approvals.answer(request.id, reply)
    except ToolcellError as error:
        # The call continues, and is refused or asked about like any other.
        _log.warning("the answer of a client was not accepted: %s", error.message)
