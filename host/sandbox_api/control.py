"""The control plane: sandboxes are made, shown, prolonged and ended."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolcell.core import ConfigError
from toolcell.sandbox import Network

from ..config.sandbox_api import SandboxAPIConfig
from ..mcp_http.tokens import Token
from ..sandbox_http.access import Access
from ..sandbox_http.bodies import body, page, parsed
from ..sandbox_http.errors import APIError
from ..sandbox_state.sandbox import Lifecycle, Sandbox
from ..sandbox_state.sandboxes import Sandboxes
from ..sandbox_state.snapshots import Snapshot, Snapshots
from .guarded import GuardedCalls
from .process_service import Message

_ALL_HOSTS = {"0.0.0.0/0", "*"}


class NetworkRequest(Message):
    """The hosts that a client wants a sandbox to reach."""

    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    allow_internet_access: bool | None = Field(
        default=None, alias="allow_internet_access"
    )

    def narrowing(self) -> Network | None:
        """Return the network that is asked for; None: that of the configuration.

        Raises:
            APIError: It cannot be had.
        """
        denied = set(self.deny_out or ())
        if self.allow_internet_access is False or denied & _ALL_HOSTS:
            denied -= _ALL_HOSTS
            wanted: Network | None = Network.none
        else:
            wanted = None
        if denied:
            raise APIError(501, "single hosts cannot be denied; name those to allow")
        if self.allow_out and not set(self.allow_out) & _ALL_HOSTS:
            hosts = [each if ":" in each else f"{each}:443" for each in self.allow_out]
            try:
                return Network.allow(hosts)
            except ConfigError as error:
                raise APIError(400, error.message) from None
        return wanted


class AutoResume(Message):
    """Lets requests wake a paused sandbox up."""

    enabled: bool = False


class CreateRequest(Message):
    """A sandbox to make."""

    template_id: str = Field(default="base", alias="templateID")
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


class PauseRequest(Message):
    """A pause; without `memory` only the files would be kept."""

    memory: bool = True


class TimeoutRequest(Message):
    """The seconds from now at which a sandbox ends."""

    timeout: int | None = None


Handler = Callable[[Request, Token], Awaitable[Response]]


class Control:
    """Answers the requests that name no sandbox's own services.

    Args:
        settings: The limits.
        access: Knows tokens.
        sandboxes: The open sandboxes.
        snapshots: What sandboxes can be made from, besides templates.
        calls: Admits what clients do.
    """

    def __init__(
        self,
        settings: SandboxAPIConfig,
        access: Access,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        calls: GuardedCalls,
    ) -> None:
        self._settings = settings
        self._access = access
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._calls = calls
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
                raise APIError(501, f"sandboxes with {name!r} are not supported")
        if wanted.auto_pause and not wanted.auto_pause_memory:
            raise _keeps_memory()
        network = wanted.network or NetworkRequest()
        if wanted.allow_internet_access is False:
            network = NetworkRequest(allow_internet_access=False)
        snapshot = self._snapshots.find(token, wanted.template_id)
        if snapshot is None:
            self._check_template(wanted.template_id)
        sandbox = await self.create(token, wanted, network.narrowing(), snapshot)
        return JSONResponse(self.with_access(sandbox), status_code=201)

    def _check_template(self, name: str) -> None:
        templates = self._settings.templates
        if name not in templates:
            known = ", ".join(templates)
            raise APIError(404, f"there is no template {name!r}; there are {known}")

    async def create(
        self,
        token: Token,
        wanted: CreateRequest,
        network: Network | None,
        snapshot: Snapshot | None,
    ) -> Sandbox:
        """Make a sandbox, as a call of its token's agent.

        Args:
            token: Its owner.
            wanted: What the client asks for.
            network: Its network, within that of the configuration; None: that one.
            snapshot: The files that it begins with.

        Raises:
            APIError: It would live too long, or there are too many.
            GuardDeniedError: The guard refuses it.
            ToolcellError: It cannot be opened, or would reach further than it may.
        """
        call = {
            "template": wanted.template_id,
            "timeout": wanted.timeout,
            "auto_pause": wanted.auto_pause,
            "env": wanted.env_vars,
            "metadata": wanted.metadata,
            "allow_internet_access": wanted.allow_internet_access,
            "allow_out": None if wanted.network is None else wanted.network.allow_out,
        }
        seconds = wanted.timeout
        async with self._calls.begun(
            "create", call, agent_id=token.agent_id, run_id=f"token-{token.id}"
        ):
            return await self._sandboxes.create(
                token,
                template=wanted.template_id,
                lifecycle=Lifecycle(
                    self._settings.timeout_seconds if seconds is None else seconds,
                    pauses=wanted.auto_pause,
                    wakes_up=wanted.auto_resume.enabled,
                ),
                env={**({} if snapshot is None else snapshot.env), **wanted.env_vars},
                metadata=wanted.metadata,
                network=network,
                archive=None if snapshot is None else self._snapshots.archive(snapshot),
            )

    async def _connect(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
        wanted = await self._read(TimeoutRequest, request)
        if sandbox.state == "paused":
            async with self._calls.of(sandbox, "pause", {"operation": "resume"}):
                await self._sandboxes.resume(sandbox, wanted.timeout)
        else:
            # Connecting never shortens a life.
            end_at = self._sandboxes.end_at(wanted.timeout)
            sandbox.set_end(max(end_at, sandbox.end_at))
        return JSONResponse(self.with_access(sandbox))

    async def wake(self, sandbox: Sandbox) -> None:
        """Let a sandbox that sleeps go on, since a request came for it.

        Raises:
            GuardDeniedError: The guard refuses it.
        """
        async with self._calls.of(sandbox, "pause", {"operation": "resume"}):
            await self._sandboxes.resume(sandbox, sandbox.lifecycle.seconds)

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
        async with self._calls.of(sandbox, "pause", {"operation": "pause"}):
            await self._sandboxes.pause(sandbox)
        return Response(status_code=204)

    async def _set_timeout(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
        wanted = await self._read(TimeoutRequest, request)
        sandbox.set_end(self._sandboxes.end_at(wanted.timeout))
        return Response(status_code=204)

    async def _set_network(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
        wanted = await self._read(NetworkRequest, request)
        call = {
            "allow_out": wanted.allow_out,
            "allow_internet_access": wanted.allow_internet_access,
        }
        async with self._calls.of(sandbox, "network", call):
            network = self._sandboxes.narrowed(wanted.narrowing())
            await sandbox.session.set_network(network)
        return Response(status_code=204)

    async def _list(self, request: Request, token: Token) -> Response:
        query = request.query_params
        found = self._sandboxes.all_of(token)
        wanted = dict(parse_qsl(query.get("metadata", "")))
        states = {part for each in query.getlist("state") for part in each.split(",")}
        after = query.get("startedAfter")
        template = query.get("template")
        found = [
            each
            for each in found
            if wanted.items() <= each.metadata.items()
            and (not states or each.state in states)
            and (template is None or each.template == template)
            and (after is None or each.started_at > _seconds(after))
        ]
        if query.get("order") == "asc":
            found.reverse()
        return page([each.to_json() for each in found], query)

    async def _read(self, model: type[Any], request: Request) -> Any:
        return parsed(model, await body(request, self._settings.max_body_bytes))

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
