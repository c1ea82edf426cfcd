"""The control plane: sandboxes are made, shown, prolonged and ended."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

import anyio.abc
from pydantic import Field
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolcell.core import ToolcellError

from ...config.sandbox_api import SandboxAPIConfig
from ...http.bodies import Bounds
from ...http.tokens import Token
from ..operations.action import Actions
from ..operations.creation import CREATE, CreateArguments, check_template
from ..operations.lifetimes import (
    PAUSE,
    RESUME,
    SET_TIMEOUT,
    PauseArguments,
    ResumeArguments,
    TimeoutArguments,
)
from ..operations.networks import ALL_HOSTS, SET_NETWORK, SetNetworkArguments
from ..protocol.access import Access
from ..protocol.bodies import page, parsed
from ..protocol.errors import APIError
from ..state.sandbox import Sandbox
from ..state.sandboxes import Sandboxes
from ..state.snapshots import Snapshots
from .process_service import ClientMessage


class NetworkRequest(ClientMessage):
    """The hosts that a client wants a sandbox to reach."""

    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    allow_public_traffic: bool | None = None
    """Ports need the access token in any case; SDKs send True by default."""

    allow_internet_access: bool | None = Field(
        default=None, alias="allow_internet_access"
    )

    def shown(self) -> dict[str, Any]:
        """Return the arguments of an action that stand for it.

        Raises:
            APIError: It cannot be had.
        """
        denied = set(self.deny_out or ())
        if denied - ALL_HOSTS:
            raise APIError(
                501, "denyOut: single hosts cannot be denied; name those to allow"
            )
        access = False if denied else self.allow_internet_access
        return {"allow_internet_access": access, "allow_out": self.allow_out}


class AutoResume(ClientMessage):
    """Lets requests wake a paused sandbox up."""

    enabled: bool = False


class CreateRequest(ClientMessage):
    """A sandbox to make."""

    template_id: str = Field(default="base", alias="templateID")
    secure: bool | None = None
    """Requests need the access token of the sandbox in any case."""

    timeout: int | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    env_vars: dict[str, str] = Field(default_factory=dict)
    allow_internet_access: bool | None = Field(
        default=None, alias="allow_internet_access"
    )
    network: NetworkRequest | None = None
    mcp: dict[str, Any] | None = None
    volume_mounts: list[Any] | None = None
    iam: dict[str, Any] | None = None
    auto_pause: bool = False
    auto_pause_memory: bool = True
    auto_resume: AutoResume = AutoResume()


class PauseRequest(ClientMessage):
    """A pause; without `memory` only the files would be kept."""

    memory: bool = True


class TimeoutRequest(ClientMessage):
    """The seconds from now at which a sandbox ends."""

    timeout: int | None = None


Handler = Callable[[Request, Token], Awaitable[Response]]


class Control:
    """Answers the requests that name no sandbox's own services.

    Args:
        settings: The limits.
        bounds: The bounds of a message.
        access: Knows tokens.
        sandboxes: The open sandboxes.
        snapshots: What sandboxes can be made from, besides templates.
        actions: Leads what clients do through the guard.
    """

    def __init__(
        self,
        settings: SandboxAPIConfig,
        bounds: Bounds,
        access: Access,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        actions: Actions,
    ) -> None:
        self._settings = settings
        self._bounds = bounds
        self._access = access
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._actions = actions
        one = "/sandboxes/{sandbox_id}"
        self.routes: list[tuple[str, str, Handler]] = [
            ("POST", "/sandboxes", self._create),
            ("POST", "/v2/sandboxes", self._create),
            ("GET", "/sandboxes", self._list),
            ("GET", "/v2/sandboxes", self._list),
            ("GET", one, self._show),
            ("GET", f"{one}/metrics", self._measure),
            ("DELETE", one, self._kill),
            ("POST", f"{one}/pause", self._pause),
            ("POST", f"{one}/timeout", self._set_timeout),
            ("POST", f"{one}/refreshes", self._set_timeout),
            ("POST", f"{one}/connect", self._connect),
            ("POST", f"/v2{one}/connect", self._connect),
            ("POST", f"{one}/resume", self._connect),
            ("PUT", f"{one}/network", self._set_network),
        ]
        """Method, path and handler of each route."""

    async def _create(self, request: Request, token: Token) -> Response:
        wanted = await self._read(CreateRequest, request)
        for name in ("mcp", "volume_mounts", "iam"):
            if getattr(wanted, name):
                raise APIError(
                    501, f"sandboxes with {to_camel(name)!r} are not supported"
                )
        if wanted.auto_pause and not wanted.auto_pause_memory:
            raise _keeps_memory()
        network = wanted.network or NetworkRequest()
        if wanted.allow_internet_access is False:
            network = NetworkRequest(allow_internet_access=False)
        snapshot = self._snapshots.find(token, wanted.template_id)
        if snapshot is None:
            check_template(self._settings.templates, wanted.template_id)
        asked = CreateArguments(
            template=wanted.template_id,
            snapshot=None if snapshot is None else snapshot.id,
            timeout=wanted.timeout,
            auto_pause=wanted.auto_pause,
            auto_resume=wanted.auto_resume.enabled,
            env=wanted.env_vars,
            metadata=wanted.metadata,
            **network.shown(),
        )
        async with self._actions.do(CREATE, token, asked) as sandbox:
            return JSONResponse(self.with_access(sandbox), status_code=201)

    async def _connect(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
        wanted = await self._read(TimeoutRequest, request)
        if sandbox.state == "paused":
            await self._resume(sandbox, wanted.timeout)
        elif self._sandboxes.end_at(wanted.timeout) > sandbox.end_at:
            # Connecting never shortens a life.
            await self._set_end(sandbox, wanted.timeout)
        return JSONResponse(self.with_access(sandbox))

    async def wake(self, sandbox: Sandbox) -> None:
        """Let a sandbox that sleeps go on, since a request came for it.

        Raises:
            GuardDeniedError: The guard refuses it.
        """
        await self._resume(sandbox, sandbox.lifecycle.seconds)

    async def _resume(self, sandbox: Sandbox, seconds: int | None) -> None:
        wanted = ResumeArguments(sandbox_id=sandbox.id, timeout=seconds)
        async with self._actions.do(RESUME, sandbox.token, wanted):
            pass

    async def _set_end(self, sandbox: Sandbox, seconds: int | None) -> None:
        if seconds is None:
            seconds = self._settings.timeout_seconds
        wanted = TimeoutArguments(sandbox_id=sandbox.id, timeout=seconds)
        await sandbox.work.start(self._prolong, sandbox, wanted)

    async def _prolong(
        self,
        sandbox: Sandbox,
        wanted: TimeoutArguments,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Own the action for as long as commands run that live longer by it."""
        began = False
        try:
            async with self._actions.do(SET_TIMEOUT, sandbox.token, wanted):
                began = True
                task_status.started()
        except (ToolcellError, APIError):
            if not began:
                raise

    async def _show(self, request: Request, token: Token) -> Response:
        return JSONResponse(self.with_access(self._of(request, token)))

    async def _measure(self, request: Request, token: Token) -> Response:
        """Answer with one measurement, of now; none of a sandbox that is paused."""
        sandbox, query = self._of(request, token), request.query_params
        start, end = _unix(query.get("start", "0")), _unix(query.get("end", "inf"))
        if sandbox.state != "running" or not start <= time.time() < end + 1:
            return JSONResponse([])
        return JSONResponse([await sandbox.metrics()])

    async def _kill(self, request: Request, token: Token) -> Response:
        await self._sandboxes.kill(self._of(request, token))
        return Response(status_code=204)

    async def _pause(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
        wanted = await self._read(PauseRequest, request)
        if not wanted.memory:
            raise _keeps_memory()
        asked = PauseArguments(sandbox_id=sandbox.id)
        async with self._actions.do(PAUSE, token, asked):
            pass
        return Response(status_code=204)

    async def _set_timeout(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
        wanted = await self._read(TimeoutRequest, request)
        await self._set_end(sandbox, wanted.timeout)
        return Response(status_code=204)

    async def _set_network(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
        wanted = await self._read(NetworkRequest, request)
        asked = SetNetworkArguments(sandbox_id=sandbox.id, **wanted.shown())
        async with self._actions.do(SET_NETWORK, token, asked):
            pass
        return Response(status_code=204)

    async def _list(self, request: Request, token: Token) -> Response:
        query = request.query_params
        found = self._sandboxes.all_of(token)
        wanted = dict(parse_qsl(query.get("metadata", "")))
        states = {part for each in query.getlist("state") for part in each.split(",")}
        after = query.get("startedAfter")
        template = query.get("template")
        found = [
            sandbox
            for sandbox in found
            if wanted.items() <= sandbox.metadata.items()
            and (not states or sandbox.state in states)
            and (template is None or sandbox.template == template)
            and (after is None or sandbox.started_at >= _seconds(after))
        ]
        if query.get("order") == "asc":
            found.reverse()
        return page([sandbox.to_json() for sandbox in found], query)

    async def _read(self, model: type[Any], request: Request) -> Any:
        return parsed(model, await self._bounds.read(request))

    def _of(self, request: Request, token: Token) -> Sandbox:
        return self._sandboxes.of(token, request.path_params["sandbox_id"])

    def with_access(self, sandbox: Sandbox) -> dict[str, Any]:
        """Return what the owner of a sandbox sees of it, with its access token."""
        secret = self._access.access_token(sandbox.id)
        return {
            **sandbox.to_json(),
            "envdAccessToken": secret,
            "trafficAccessToken": secret,
            "domain": self._settings.domain,
        }


def _unix(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise APIError(400, "start and end are seconds since 1970") from None


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise APIError(400, "startedAfter is no time") from None


def _keeps_memory() -> APIError:
    return APIError(501, "a pause keeps memory and files; for files take a snapshot")
