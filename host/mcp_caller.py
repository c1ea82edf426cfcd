"""Who calls: the agent behind a request, its session, and how to ask its person."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolcell.core import ToolcellError
from toolcell.guard import ApprovalRequest, Approve, Reject

from .host import Host

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
    """Who makes a request; never the client's word."""

    agent_id: str
    run_id: str
    """The session: the same for all requests of one client, and of no other."""

    approver: str | None
    """In whose name the client's user approves calls; None: it may not."""


WhoCalls = Callable[[Context], Caller]


class AskClient:
    """Asks the user of the client whose call waits for approval.

    Args:
        ctx: The request that makes the call.
        caller: Who makes it.
        park: Ends the call; its client will make it again with the answer.
    """

    def __init__(self, ctx: Context, caller: Caller, park: Callable[[], None]) -> None:
        self._ctx = ctx
        self._caller = caller
        self._park = park
        self.request: ApprovalRequest | None = None
        """What waits for an answer."""

    @property
    def can_ask(self) -> bool:
        """Whether the client has a user whose word counts."""
        return self._caller.approver is not None and _offers_forms(self._ctx)

    async def __call__(self, request: ApprovalRequest) -> Approve | Reject | None:
        self.request = request
        if not self.can_ask or self._caller.approver is None:
            return None
        if self._ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._park()
            return None
        answer = await self._ctx.session.elicit_form(
            request.to_display(), _SCHEMA, related_request_id=self._ctx.request_id
        )
        return reply_of(answer, self._caller.approver)

    def input_required(self) -> types.InputRequiredResult:
        """Return the question for clients that make the call again."""
        assert self.request is not None
        form = types.ElicitRequestFormParams(
            message=self.request.to_display(), requested_schema=_SCHEMA
        )
        return types.InputRequiredResult(
            input_requests={ANSWER_KEY: types.ElicitRequest(params=form)},
            request_state=self.request.id,
        )


def _offers_forms(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    offered = capabilities.elicitation if capabilities else None
    # Before there were kinds of elicitation, to offer it was to offer forms.
    return offered is not None and (offered.form is not None or offered.url is None)


def reply_of(answer: types.ElicitResult, approver: str) -> Approve | Reject | None:
    """Return what a user said; None: nothing."""
    if answer.action == "cancel":
        return None
    said = answer.content or {}
    if answer.action == "accept" and said.get("approve") is True:
        return Approve(approver=approver)
    reason = said.get("reason")
    return Reject(approver=approver, reason=reason if isinstance(reason, str) else "")


async def take_answer(
    host: Host, caller: Caller, params: types.CallToolRequestParams
) -> None:
    """Hand in the answer that a call brings along, if it is one to its own request."""
    answer = (params.input_responses or {}).get(ANSWER_KEY)
    if caller.approver is None or not isinstance(answer, types.ElicitResult):
        return
    reply = reply_of(answer, caller.approver)
    waiting = {each.id: each for each in await host.approvals.pending()}
    request = waiting.get(params.request_state or "")
    if reply is None or request is None or request.call.agent_id != caller.agent_id:
        return
    try:
        await host.approvals.answer(request.id, reply)
    except ToolcellError as error:
        # The call goes on, and is refused or asked about like any other.
        _log.warning("an answer of a client does not count: %s", error.message)
