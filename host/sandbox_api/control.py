"""The control plane: sandboxes are made, shown, prolonged and ended."""

from __future__ import annotations

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
from ..sandbox_http.bodies import body, parsed
from ..sandbox_http.errors import APIError
from .guarded import GuardedCalls
from .process_service import Message
from .sandboxes import Sandbox, Sandboxes

_MAX_PAGE = 100
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
        calls: Admits what clients do.
    """

    def __init__(
        self,
        settings: SandboxAPIConfig,
        access: Access,
        sandboxes: Sandboxes,
        calls: GuardedCalls,
    ) -> None:
        self._settings = settings
        self._access = access
        self._sandboxes = sandboxes
        self._calls = calls
        one = "/sandboxes/{sandbox_id}"
        self.routes: list[tuple[str, str, Handler]] = [
            ("POST", "/sandboxes", self._create),
            ("POST", "/v2/sandboxes", self._create),
            ("GET", "/sandboxes", self._list),
            ("GET", "/v2/sandboxes", self._list),
            ("GET", one, self._show),
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
        for name in ("mcp", "volume_mounts", "iam", "auto_pause"):
            if getattr(wanted, name):
                raise APIError(501, f"sandboxes with {name!r} are not supported")
        call = {
            "template": wanted.template_id,
            "timeout": wanted.timeout,
            "env": wanted.env_vars,
            "metadata": wanted.metadata,
            "allow_internet_access": wanted.allow_internet_access,
            "allow_out": None if wanted.network is None else wanted.network.allow_out,
        }
        network = wanted.network or NetworkRequest()
        if wanted.allow_internet_access is False:
            network = NetworkRequest(allow_internet_access=False)
        async with self._calls.begun(
            "create", call, agent_id=token.agent_id, run_id=f"token-{token.id}"
        ):
            sandbox = await self._sandboxes.create(
                token,
                template=wanted.template_id,
                seconds=wanted.timeout,
                env=wanted.env_vars,
                metadata=wanted.metadata,
                network=network.narrowing(),
            )
        return JSONResponse(self._with_access(sandbox), status_code=201)

    async def _connect(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
        wanted = await self._read(TimeoutRequest, request)
        end_at = self._sandboxes.end_at(wanted.timeout)
        if sandbox.state == "paused":
            async with self._calls.of(sandbox, "pause", {"operation": "resume"}):
                await self._sandboxes.resume(sandbox, end_at)
        else:
            # Connecting never shortens a life.
            sandbox.set_end(max(end_at, sandbox.end_at))
        return JSONResponse(self._with_access(sandbox))

    async def _show(self, request: Request, token: Token) -> Response:
        return JSONResponse(self._with_access(self._of(request, token)))

    async def _kill(self, request: Request, token: Token) -> Response:
        await self._sandboxes.kill(self._of(request, token))
        return Response(status_code=204)

    async def _pause(self, request: Request, token: Token) -> Response:
        sandbox = self._of(request, token)
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
        start, limit = _page(query.get("nextToken"), query.get("limit"))
        page = found[start : start + limit]
        headers = {}
        if start + limit < len(found):
            headers["x-next-token"] = str(start + limit)
        return JSONResponse([each.to_json() for each in page], headers=headers)

    async def _read(self, model: type[Any], request: Request) -> Any:
        return parsed(model, await body(request, self._settings.max_body_bytes))

    def _of(self, request: Request, token: Token) -> Sandbox:
        return self._sandboxes.of(token, request.path_params["sandbox_id"])

    def _with_access(self, sandbox: Sandbox) -> dict[str, Any]:
        secret = self._access.access_token(sandbox.id)
        return {
            **sandbox.to_json(),
            "envdAccessToken": secret,
            "trafficAccessToken": secret,
            "domain": self._settings.domain,
        }


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise APIError(400, "startedAfter is no time") from None


def _page(token: str | None, limit: str | None) -> tuple[int, int]:
    """Return the first entry of a page, and its length."""
    texts = (token or "0", limit or str(_MAX_PAGE))
    if not all(each.isascii() and each.isdecimal() for each in texts):
        raise APIError(400, "nextToken and limit are numbers")
    start, length = (int(each[:9]) for each in texts)
    return start, min(max(length, 1), _MAX_PAGE)
