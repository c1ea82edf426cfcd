"""Answers the operations of the REST API, each for the agent of its token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from toolcell.core import InvalidInputError
from toolcell.core.event_loop import beside_loop, give_way, is_large
from toolcell.guard import Approve, Reject

from ..http.agent_shares import AgentShares, TooManyError
from ..http.serving import OpenRequests
from ..http.streams import TAKE_SECONDS, Streamed, event_stream
from ..http.tokens import Token, TokenStore, open_tokens
from ..operator.actions import cancel_call
from ..operator.event_bus import OPERATORS, Events
from ..operator.filters import read_status
from ..operator.limits import agent_limits
from ..operator.session_usage import measured
from ..runtime.host import Host
from ..runtime.readiness import Readiness
from . import approvals, bodies
from .bodies import Body
from .calls import ClientCall, ClientCalls, run_of
from .errors import RETRY_SECONDS, RequestRefusedError, answer_of
from .openapi import openapi_document
from .operations import OPERATIONS, Name, Operation
from .records import written_page
from .requests import check_operator, read_body, read_query, read_token, whose
from .views import budgets_view, live_view, session_view, written_live


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request that was read."""

    token: Token
    id: str
    """The id in the path; empty where it has none."""

    query: Any
    body: Any
    request: Request

    @property
    def agent_id(self) -> str:
        """The agent whose request it is."""
        return self.token.agent_id


_Answer = tuple[int, Body] | Response


class RestAPI:
    """The application behind the server.

    Args:
        host: The host; open.
        tokens: The tokens of agents.
        calls: The calls of clients.
        events: The events of agents.
        version: The version of toolcell.
    """

    def __init__(
        self,
        host: Host,
        tokens: TokenStore,
        calls: ClientCalls,
        events: Events,
        version: str,
    ) -> None:
        self._host = host
        self._settings = host.config.server
        self._tokens = tokens
        self._open = OpenRequests(tokens.is_valid)
        self.calls = calls
        """The calls of clients."""

        self._events = events
        self._document = openapi_document(version)
        self._readiness = Readiness(host)
        self._shares = AgentShares(
            self._settings.max_requests,
            self._settings.max_bytes_per_second,
            anyio.current_time,
        )
        self._paths = [
            (compile_path(operation.path)[0], operation) for operation in OPERATIONS
        ]
        self._handlers: dict[Name, Callable[[ApiRequest], Awaitable[_Answer]]] = {
            "listTools": self._list_tools,
            "makeCall": self._make_call,
            "getCall": self._get_call,
            "cancelCall": self._cancel_call,
            "listApprovals": self._list_approvals,
            "getApproval": self._get_approval,
            "approve": self._approve,
            "deny": self._deny,
            "listLiveCalls": self._list_live_calls,
            "cancelLiveCall": self._cancel_live_call,
            "listSessions": self._list_sessions,
            "getBudgets": self._get_budgets,
            "listAgents": self._list_agents,
            "listRecords": self._list_records,
            "readEvents": self._read_events,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with self._open.request(scope) as belongs_to, ExitStack() as place:
            try:
                response = await self._answer(request, place, belongs_to)
            except Exception as error:  # noqa: BLE001 - each error is an answer
                response = answer_of(error)
            response.headers["Cache-Control"] = "no-store"
            response.headers["X-Content-Type-Options"] = "nosniff"
            await response(scope, receive, send)

    async def _answer(
        self, request: Request, place: ExitStack, belongs_to: Callable[[str], None]
    ) -> Response:
        match request.method, request.url.path:
            case "GET", "/v1/openapi.json":
                return JSONResponse(self._document)
            case "GET", "/healthz":
                return JSONResponse({"status": "ok"})
            case "GET", "/readyz":
                return await self._ready()
        operation, name = self._operation(request)
        token = read_token(request, self._tokens)
        belongs_to(token.id)
        self._check_rate(token.agent_id)
        try:
            place.enter_context(
                self._shares.request(token.agent_id, ends=operation.ends)
            )
        except TooManyError as error:
            raise RequestRefusedError(
                503, "busy", str(error), retry_after=RETRY_SECONDS
            ) from None
        if await self._shares.turn(token.agent_id, ends=operation.ends):
            read_token(request, self._tokens)
        answer = await self._handle(operation, name, token, request)
        if isinstance(answer, Response):
            return answer
        status, body = answer
        return Response(body.model_dump_json(), status, media_type="application/json")

    def _operation(self, request: Request) -> tuple[Operation, str]:
        """Return the operation of a request, and the id in its path.

        Raises:
            RequestRefusedError: 404 or 405: there is no such path, or method of it.
        """
        allowed = set()
        for path, operation in self._paths:
            found = path.match(request.url.path)
            if found is None:
                continue
            if request.method == operation.method:
                return operation, found.groupdict().get("id", "")
            allowed.add(operation.method)
        if allowed:
            raise RequestRefusedError(
                405,
                "method",
                f"the path takes {' and '.join(sorted(allowed))}",
                headers={"Allow": ", ".join(sorted(allowed))},
            )
        raise RequestRefusedError(
            404, "no_such_path", "there is no such path", hint="see /v1/openapi.json"
        )

    def _check_rate(self, agent_id: str) -> None:
        """Refuse an agent that has sent too much; count the head of its request."""
        seconds = self._shares.seconds_to_wait(agent_id)
        if seconds:
            raise RequestRefusedError(
                429,
                "too_many_bytes",
                "the agent sent more than server.max_bytes_per_second",
                hint="send less, or later",
                retry_after=seconds,
                headers={"Connection": "close"},
            )
        self._shares.charge(agent_id, 0)

    async def _handle(
        self, operation: Operation, name: str, token: Token, request: Request
    ) -> _Answer:
        query = read_query(request, operation.query)
        body = None
        if operation.body is not None:
            body, size = await read_body(request, operation.body, self._settings)
            self._shares.charge(token.agent_id, size)
        asked = ApiRequest(token, name, query, body, request)
        return await self._handlers[operation.name](asked)

    async def _ready(self) -> Response:
        if not self._host.active_calls.ready:
            busy = "stopping" if self._host.active_calls.draining else "busy"
            return JSONResponse({"status": busy}, status_code=503)
        if missing := await self._readiness.missing():
            report = {"status": "unavailable", "missing": missing}
            return JSONResponse(report, status_code=503)
        return JSONResponse({"status": "ready"})

    async def _list_tools(self, asked: ApiRequest) -> _Answer:
        tools = [
            bodies.Tool(
                name=tool.name,
                description=tool.description,
                version=tool.version,
                tags=sorted(tool.tags),
                parameters=tool.parameters,
                returns=tool.returns,
                idempotent=tool.idempotent,
            )
            for tool in self._host.tools(asked.agent_id)
        ]
        return 200, bodies.ToolList(tools=tools)

    async def _make_call(self, asked: ApiRequest) -> _Answer:
        call = await self.calls.start(asked.token, asked.body)
        return await self._after_wait(call, asked.query.wait)

    async def _get_call(self, asked: ApiRequest) -> _Answer:
        call = self.calls.find(asked.agent_id, asked.id)
        return await self._after_wait(call, asked.query.wait)

    async def _after_wait(self, call: ClientCall, seconds: float) -> _Answer:
        with anyio.move_on_after(seconds):
            await call.ended.wait()
        state = call.view(self._host.live_calls)
        if is_large([state.arguments, state.result and state.result.content]):
            await give_way()
        return 200 if state.state == "ended" else 202, state

    async def _cancel_call(self, asked: ApiRequest) -> _Answer:
        try:
            call = self.calls.find(asked.agent_id, asked.id)
        except RequestRefusedError:
            # The request that makes it may still be in line.
            await self._shares.turn(asked.agent_id)
            call = self.calls.find(asked.agent_id, asked.id)
        await self.calls.cancel(call)
        return 200, call.view(self._host.live_calls)

    async def _list_approvals(self, asked: ApiRequest) -> _Answer:
        waiting = await self._host.approvals.waiting(asked.agent_id)
        parts = approvals.listed(self._host.approvals, waiting)
        return Streamed(parts, "application/json", take_seconds=TAKE_SECONDS)

    async def _get_approval(self, asked: ApiRequest) -> _Answer:
        found = await approvals.find(self._host.approvals, asked.agent_id, asked.id)
        return 200, await approvals.shown(found, self._host.approvals.redactor)

    async def _approve(self, asked: ApiRequest) -> _Answer:
        name = approvals.approver(asked.token)
        found = await approvals.find(self._host.approvals, asked.agent_id, asked.id)
        approvals.check_alone(found)
        body = asked.body
        reply = Approve(approver=name, arguments=body.arguments, seen=body.digest)
        await self._host.approvals.answer(found.id, reply)
        return 200, bodies.ApprovalAnswer(id=found.id, answer="approved", approver=name)

    async def _deny(self, asked: ApiRequest) -> _Answer:
        name = approvals.approver(asked.token)
        found = await approvals.find(self._host.approvals, asked.agent_id, asked.id)
        reply = Reject(approver=name, reason=asked.body.reason)
        await self._host.approvals.answer(found.id, reply)
        return 200, bodies.ApprovalAnswer(id=found.id, answer="rejected", approver=name)

    async def _list_live_calls(self, asked: ApiRequest) -> _Answer:
        agent_id = whose(asked.token, asked.query.agent)
        found = self._host.live_calls.all(agent_id)
        write = partial(written_live, found, self._host.redactor)
        calls = await beside_loop(asked.token.agent_id, write)
        return Response(calls, media_type="application/json")

    async def _cancel_live_call(self, asked: ApiRequest) -> _Answer:
        check_operator(asked.token)
        live, host = self._host.live_calls, self._host
        try:
            call = live.find(int(asked.id))
        except (ValueError, InvalidInputError):
            raise RequestRefusedError(
                404, "not_found", "no running call has this number", hint="see /v1/live"
            ) from None
        name = f"token {asked.token.id}"
        recorded = await cancel_call(live, call, by=name, audit=host.audit)
        view = live_view(call, host.redactor).model_dump()
        return 200, bodies.CancelledCall(**view, recorded=recorded)

    async def _list_sessions(self, asked: ApiRequest) -> _Answer:
        agent_id, sessions = whose(asked.token, asked.query.agent), self._host.sessions
        found = [] if sessions is None else await measured(sessions, agent_id)
        shown = [session_view(*entry) for entry in found]
        return 200, bodies.SessionList(sessions=shown)

    async def _get_budgets(self, asked: ApiRequest) -> _Answer:
        agent_id = whose(asked.token, asked.query.agent) or ""
        return 200, await self._budgets(agent_id, run_of(asked.token))

    async def _list_agents(self, asked: ApiRequest) -> _Answer:
        check_operator(asked.token)
        found = [await self._budgets(agent) for agent in self._host.guard.agents]
        return 200, bodies.AgentList(agents=found)

    async def _budgets(
        self, agent_id: str, run_id: str | None = None
    ) -> bodies.Budgets:
        host = self._host
        limits = await agent_limits(host.guard, host.registry, agent_id, run_id)
        return budgets_view(agent_id, limits)

    async def _list_records(self, asked: ApiRequest) -> _Answer:
        query: bodies.RecordQuery = asked.query
        search = partial(
            self._host.executor.records.page,
            call_id=query.call_id,
            parent_id=query.parent_id,
            agent_id=whose(asked.token, query.agent),
            tool_name=query.tool,
            status=read_status(query.status) if query.status else None,
            reason=query.reason,
            text=query.text,
            since=_time(query.since),
            until=_time(query.until),
        )
        read = partial(written_page, search, query.before, query.limit)
        page = await beside_loop(asked.token.agent_id, read)
        return Response(page, media_type="application/json")

    async def _read_events(self, asked: ApiRequest) -> _Answer:
        stream = self._events.read(
            whose(asked.token, asked.query.agent) or OPERATORS,
            asked.request.headers.get("last-event-id"),
            seconds=asked.query.seconds,
            turn=partial(self._shares.turn, asked.agent_id),
        )
        return event_stream(stream, {"X-Accel-Buffering": "no"})


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@asynccontextmanager
async def open_api(host: Host, events: Events) -> AsyncIterator[RestAPI]:
    """Open the application; when it is left, calls that run are finished.

    Args:
        host: The host; open.
        events: The events of the host.

    Raises:
        ConfigError: There is no place for tokens.
    """
    with open_tokens(host.config) as tokens:
        async with anyio.create_task_group() as tasks:
            calls = ClientCalls(host, tasks, tokens.is_valid)
            try:
                yield RestAPI(host, tokens, calls, events, version("toolcell"))
                await host.active_calls.drain(host.config.server.drain_seconds)
            finally:
                tasks.cancel_scope.cancel()
