"""Makes toolsets of the MCP servers that the configuration names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolcell.core import ConfigError
from toolcell.core.secrets import read_secret
from toolcell.sandbox import Network, SandboxConfig
from toolcell.tools import MCPCommand, MCPToolset
from toolcell.tools.spi import KeptTokens, MCPEndpoint, MCPPins, OAuthLogin

from ..config.host_config import HostConfig
from ..config.mcp_servers import MCPCellConfig, MCPLoginConfig, MCPServerConfig

_log = logging.getLogger(__name__)


def listed_toolsets(config: HostConfig) -> list[MCPToolset]:
    """Return the approved tools for display; no secret is read.

    Raises:
        ConfigError: The pins cannot be read.
    """
    if not config.tools.mcp:
        return []
    pins = MCPPins.load(config.tools.mcp_pins)
    return [
        _toolset(config, name, pins, dict.fromkeys(settings.secrets, ""))
        for name, settings in config.tools.mcp.items()
    ]


def make_toolsets(config: HostConfig, secrets: Mapping[str, Any]) -> list[MCPToolset]:
    """Return the approved tools of all servers; none is started or connected yet.

    Raises:
        ConfigError: The pins cannot be read.
    """
    if not config.tools.mcp:
        return []
    pins = MCPPins.load(config.tools.mcp_pins)
    made = []
    for name, settings in config.tools.mcp.items():
        known = {
            secret: secrets[secret].get_secret_value() for secret in settings.secrets
        }
        toolset = _toolset(config, name, pins, known, log_of(config, name))
        if toolset.unconfined:
            _log.warning(
                "the MCP server %s is not confined: it runs as the user of this host",
                name,
            )
        for tool, reason in toolset.unusable.items():
            _log.warning("%s of the MCP server %s is left out: %s", tool, name, reason)
        if not toolset.tools:
            _log.warning(
                "no tool of the MCP server %s is approved; see `toolcell tools pin`",
                name,
            )
        made.append(toolset)
    return made


def offering_toolset(
    config: HostConfig, name: str, environ: Mapping[str, str]
) -> MCPToolset:
    """Return a toolset that, once opened, has all tools of a server, approved or not.

    Raises:
        ConfigError: There is no such server, or a secret is not set.
    """
    known = _known(_settings_of(config, name).secrets, environ)
    return _toolset(config, name, None, known)


def person_login(
    config: HostConfig,
    name: str,
    agent_id: str | None,
    environ: Mapping[str, str] | None,
) -> tuple[OAuthLogin, KeptTokens, str]:
    """Return the login of a server by a person, the place of its tokens, and its URL.

    Args:
        config: The host's.
        name: The server.
        agent_id: The agent whose own login it is. None: the one without an agent.
        environ: Has the secrets of the login. None: the tokens are not read or written.

    Raises:
        ConfigError: There is no such server, it has no such login, or a secret is not
            set.
    """
    settings = _settings_of(config, name)
    login = None
    if settings.login is not None:
        known = _known(settings.login.secrets, environ)
        login = _login(name, settings.login, config, known)
    if login is None or login.kept is None:
        raise ConfigError(
            f"no person logs in for the MCP server {name}",
            hint='give its login grant = "authorization_code" and a key',
        )
    kept = login.kept if agent_id is None else login.kept.of_agent(agent_id)
    return login, kept, settings.url or ""


def last_words(config: HostConfig, name: str) -> str:
    """Return what a server wrote last on standard error, in a host of this state.

    Raises:
        ConfigError: There is no such server, or no state folder, or it cannot be read.
    """
    if name not in config.tools.mcp:
        raise _unknown(name)
    file = log_of(config, name)
    if file is None:
        raise ConfigError(
            "no place keeps what servers write", hint="set state.folder of the host"
        )
    try:
        return file.read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}",
            hint="run this as the user of the host",
        ) from error


def _settings_of(config: HostConfig, name: str) -> MCPServerConfig:
    settings = config.tools.mcp.get(name)
    if settings is None:
        raise _unknown(name)
    return settings


def _known(secrets: Iterable[str], environ: Mapping[str, str] | None) -> dict[str, str]:
    if environ is None:
        return dict.fromkeys(secrets, "")
    return {each: read_secret(each, environ).get_secret_value() for each in secrets}


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        f"there is no MCP server or API {name!r}",
        hint=f"add a table [tools.mcp.{name}]",
    )


def log_of(config: HostConfig, name: str) -> Path | None:
    """Return the file for what a server wrote last on standard error; None: there is
    no place for it."""
    folder = config.state.folder
    return None if folder is None else folder / "mcp_logs" / f"{name}.log"


def _toolset(
    config: HostConfig,
    name: str,
    pins: MCPPins | None,
    secrets: Mapping[str, str],
    log: Path | None = None,
) -> MCPToolset:
    settings = config.tools.mcp[name]
    return MCPToolset(
        name,
        _server(name, config, secrets),
        pins=pins,
        prefix=settings.prefix,
        idempotent=settings.idempotent,
        timeout_seconds=settings.timeout_seconds,
        startup_seconds=settings.startup_seconds,
        max_message_bytes=settings.max_message_bytes,
        per_agent=settings.per_agent,
        max_agents=settings.max_agents,
        idle_seconds=settings.idle_seconds,
        elicitation=settings.elicitation,
        log=log,
    )


def _server(
    name: str, config: HostConfig, secrets: Mapping[str, str]
) -> MCPCommand | MCPEndpoint:
    settings = config.tools.mcp[name]
    if settings.command is not None:
        hidden = {key: secrets[each] for key, each in settings.secret_env.items()}
        return MCPCommand(
            command=settings.command,
            args=settings.args,
            env={**settings.env, **hidden},
            where=settings.where,
            cell=_cell(name, settings.cell, config.sandbox)
            if settings.where == "cell"
            else None,
            folder=settings.folder,
        )
    headers = {key: secrets[header] for key, header in settings.headers.items()}
    if settings.bearer is not None:
        headers["Authorization"] = f"Bearer {secrets[settings.bearer]}"
    login = None
    if settings.login is not None:
        login = _login(name, settings.login, config, secrets)
    return MCPEndpoint(url=settings.url or "", headers=headers, login=login)


def _login(
    name: str, settings: MCPLoginConfig, config: HostConfig, secrets: Mapping[str, str]
) -> OAuthLogin:
    secret, folder = settings.client_secret, config.state.folder
    return OAuthLogin(
        issuer=settings.issuer,
        client_id=settings.client_id,
        client_secret=None if secret is None else secrets[secret],
        scope=settings.scope,
        shared=settings.shared,
        kept=None
        if settings.key is None or folder is None
        else KeptTokens(file=folder / "mcp_logins" / name, key=secrets[settings.key]),
    )


def _cell(name: str, cell: MCPCellConfig, sandbox: SandboxConfig) -> SandboxConfig:
    """Return the host's kind of cell, with what is a server's own."""
    owned = [
        credential
        for credential in sandbox.credentials
        if credential.is_of(f"mcp:{name}")
    ]
    reachable = [each.within(cell.network) for each in owned]
    credentials = [
        # All of that sandbox is the server's.
        each.model_copy(update={"agents": ("*",)})
        for each in reachable
        if each is not None
    ]
    usual = {name: getattr(sandbox, name) for name in sandbox.model_fields_set}
    inspect = [host for credential in credentials for host in credential.hosts]
    own = {
        "network": _network(cell.network, inspect, sandbox.network.server_ca),
        "credentials": credentials,
        "mounts": cell.mounts,
        "packages": cell.packages,
        "npm": cell.npm,
        "limits": cell.limits,
        "env": {},
    }
    return SandboxConfig(**(usual | own))


def _network(hosts: tuple[str, ...], inspect: list[str], ca: str | None) -> Network:
    if not inspect:
        return Network.none.to(hosts)
    once = tuple(dict.fromkeys(inspect))
    return Network(mode="allow", hosts=hosts, inspect=once, server_ca=ca)
