"""The tables `[tools.mcp.NAME]` of the configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from shutil import which
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from toolcell.core import ConfigError
from toolcell.core.addresses import is_loopback_or_https
from toolcell.core.paths import SYSTEM_PATH
from toolcell.core.secrets import SecretReference
from toolcell.sandbox import Limits, Mount, Network
from toolcell.sandbox.spi import NpmRequirement, Requirement

from .base import Count, FilePath, Model, Seconds

MCPName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]+([_-][A-Za-z0-9]+)*$", max_length=32)
]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Header = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]
_OF_COMMAND = {"args", "cell", "data", "env", "folder", "secret_env", "where"}
_OF_SERVER = ("connections", "network_bytes")
_Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]
_OF_CODE = frozenset(
    "BROWSER EDITOR PAGER PATH SHELL VISUAL BASH_ENV ENV ZDOTDIR "
    "HOME XDG_CONFIG_DIRS XDG_CONFIG_HOME "
    "DYLD_FRAMEWORK_PATH DYLD_INSERT_LIBRARIES DYLD_LIBRARY_PATH GCONV_PATH LD_AUDIT "
    "LD_LIBRARY_PATH LD_PRELOAD OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES "
    "CONDA_PREFIX PIP_CONFIG_FILE PYTHONEXECUTABLE PYTHONHOME PYTHONPATH "
    "PYTHONPYCACHEPREFIX PYTHONSTARTUP PYTHONUSERBASE UV_CONFIG_FILE VIRTUAL_ENV "
    "NODE_OPTIONS NODE_PATH NPM_CONFIG_GLOBALCONFIG NPM_CONFIG_PREFIX "
    "NPM_CONFIG_USERCONFIG "
    "CLASSPATH JAVA_HOME JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS "
    "DOTNET_ROOT DOTNET_STARTUP_HOOKS "
    "BUNDLE_GEMFILE BUNDLE_PATH GEM_HOME GEM_PATH RUBYLIB RUBYOPT "
    "LUA_CPATH LUA_INIT LUA_PATH PERL5LIB PERL5OPT PERLLIB PHPRC PHP_INI_SCAN_DIR "
    "JULIA_DEPOT_PATH JULIA_LOAD_PATH R_ENVIRON_USER R_LIBS R_LIBS_USER R_PROFILE "
    "R_PROFILE_USER "
    "CARGO_HOME GOPATH GOROOT RUSTUP_HOME "
    "GIT_ASKPASS GIT_CONFIG GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_DIR GIT_EDITOR "
    "GIT_EXEC_PATH GIT_EXTERNAL_DIFF GIT_PAGER GIT_SSH GIT_SSH_COMMAND "
    "GIT_TEMPLATE_DIR SSH_ASKPASS".split()
)
"""Variables that say what programs run, import, load or are configured by. The page
mcp_client.md lists them."""

_OPTION = re.compile(r"\A-[^/]*(?=/)")
_CUTS = (r"[=:,;]", r"['\"`]", r"[\s=:,;'\"`@<>|&(){}\[\]]+")
"""The marks around a path: in lists, of quotes, and in commands of a shell."""


class MCPCellConfig(Model):
    """The cell that a program of MCP runs in. It is made as `[sandbox]` says, on this
    machine, and has of network, mounts, packages, npm and limits only what stands
    here."""

    network: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    """The hosts that it may reach, as in `sandbox.network.hosts`. Empty: none."""

    mounts: Annotated[tuple[Mount, ...], Field(max_length=16)] = ()
    """Folders and files of this machine that it finds, as in `sandbox.mounts`."""

    packages: Annotated[tuple[Requirement, ...], Field(max_length=64)] = ()
    """Packages of Python that it can import, and whose commands it finds, as in
    `sandbox.packages`. They are installed before it starts, outside of its cell."""

    npm: Annotated[tuple[NpmRequirement, ...], Field(max_length=64)] = ()
    """Packages of npm that it finds in `/node_modules`, and whose commands it finds, as
    in `sandbox.npm`."""

    limits: Limits = Limits.model_construct()
    """Its limits, as in `sandbox.limits`: those of a cell, `connections` and
    `network_bytes`. Where they are left out `open_files` is 1,024, `connections`
    100,000 and `network_bytes` 1 TiB."""

    @field_validator("network")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return Network.allow(value).hosts
        except ConfigError as error:
            raise ValueError(error.message) from None

    @field_validator("limits")
    @classmethod
    def _of_a_server(cls, value: Limits) -> Limits:
        others = value.model_fields_set - {*value.of_cell, *_OF_SERVER}
        if others:
            raise ValueError(f"a server has no {', '.join(sorted(others))}")
        return value


class MCPLoginConfig(Model):
    """An OAuth client, as which the host gets tokens for the server from an
    authorization server."""

    issuer: Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$")]
    """The URL of the authorization server, as its metadata names it. The credentials
    are sent where that metadata says, whatever the MCP server says."""

    client_id: Annotated[str, Field(min_length=1)]
    """The name of the client."""

    client_secret: SecretReference | None = None
    """Its secret. None: it has none, as clients for which people log in may."""

    grant: Literal["client_credentials", "authorization_code"] = "client_credentials"
    """`client_credentials`: the client gets tokens by its secret, and no person is
    asked. `authorization_code`: people log in, with `toolcell tools login`."""

    key: SecretReference | None = None
    """A secret of 32 bytes in base64, with which the tokens of `authorization_code`
    are encrypted in `state.folder`."""

    scope: str | None = None
    """The scopes to ask for, between spaces. None: the issuer's usual ones."""

    shared: bool = False
    """If true, with `authorization_code`, agents that have no login use the one that
    was made without `--agent`; if false, their calls are not made."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        by_person = self.grant == "authorization_code"
        if by_person != (self.key is not None):
            raise ValueError("a key belongs to authorization_code, which needs one")
        if self.shared and not by_person:
            raise ValueError("shared belongs to authorization_code")
        if not by_person and self.client_secret is None:
            raise ValueError("client_credentials needs a client_secret")
        return self

    @property
    def secrets(self) -> list[str]:
        return [each for each in (self.client_secret, self.key) if each is not None]


class MCPServerConfig(Model):
    """An MCP server whose tools are offered, once they are approved with
    `toolcell tools pin`. It is a program that is started, or a URL."""

    command: Annotated[_Argument, Field(min_length=1)] | None = None
    """The program: a path, or a name that is looked for in PATH. No shell is
    involved."""

    args: tuple[_Argument, ...] = ()
    """Its arguments."""

    env: dict[_Variable, _Argument] = Field(default_factory=dict)
    """Its environment, beside what every program of a cell finds, or on the host
    beside LANG and a PATH of the system's folders; nothing of the host's own."""

    secret_env: dict[_Variable, SecretReference] = Field(default_factory=dict)
    """More of its environment, from secrets: `{ API_KEY = "env:MY_KEY" }`."""

    where: Literal["cell", "host"] = "cell"
    """`host` runs the program unconfined, as the user of this host; its tools have the
    tag `unconfined`."""

    cell: MCPCellConfig = MCPCellConfig.model_construct()
    """The program's cell."""

    folder: FilePath | None = None
    """The folder that it runs in, with `where = "host"` alone. None: the host's. In a
    cell it runs in the work dir."""

    data: tuple[FilePath, ...] = ()
    """Folders and files that it reads and writes as data, with `where = "host"` alone:
    programs of cells may write to these, though its `args` or `env` name them. What it
    runs, imports or is configured by must lie elsewhere."""

    url: (
        Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+([/?][^\s#]*)?$")] | None
    ) = None
    """The URL of a server over streamable HTTP."""

    bearer: SecretReference | None = None
    """A secret that is sent as `Authorization: Bearer ...`."""

    login: MCPLoginConfig | None = None
    """The login with which the host gets a token for each connection, in place of
    `bearer`."""

    headers: dict[_Header, SecretReference] = Field(default_factory=dict)
    """More headers, from secrets."""

    prefix: MCPName | None = None
    """Before the names of its tools, as `prefix__tool`. None: the name of the table."""

    idempotent: tuple[str, ...] = ()
    """Tools, by the server's names, that may be called again when the outcome of a
    call is not known."""

    timeout_seconds: Seconds = 60.0
    """Seconds of a call, the start of the server included. When it is reached the
    server is asked to stop, and the call ends as `timeout`."""

    startup_seconds: Seconds = 30.0
    """Seconds that the server has to start and to list its tools. When it is reached
    the calls that wait for it fail. Installing packages of its cell does not count."""

    max_message_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] = 4_194_304
    """Bytes of one message of the server. When it is reached the call fails, and a
    program is ended with its connection."""

    per_agent: bool = False
    """If true, the server is started once for each agent, so that none meets what
    another one left there; if false, one is for all. Where people log in, each agent
    has its own connection."""

    max_agents: Count = 16
    """Agents that have a server at once, with `per_agent`. When it is reached the
    server that is idle longest ends; if all are at work the call fails."""

    idle_seconds: Seconds = 600.0
    """Seconds without a call, with `per_agent`. When it is reached the agent's server
    ends."""

    elicitation: bool = False
    """If true, the server may ask the user for plain values while its call runs, as
    the act `user.ask` that rules name; if false, it is refused that."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("write either a command or a url")
        named = self.model_fields_set & _OF_COMMAND
        if self.url is not None and named:
            raise ValueError(f"{', '.join(sorted(named))} belong to a command")
        if self.where == "host" and "cell" in named:
            raise ValueError('write either a cell or where = "host"')
        if self.where == "cell" and self.folder is not None:
            raise ValueError(
                'a folder belongs to where = "host"; in a cell show it in cell.mounts'
            )
        if self.where == "cell" and self.data:
            raise ValueError('data belongs to where = "host"; a cell has cell.mounts')
        if self.command is not None and self.secrets_of_url:
            raise ValueError("bearer, login and headers belong to a url")
        if self.bearer is not None and self.login is not None:
            raise ValueError("write either a bearer or a login")
        reached = [self.url or "", *([self.login.issuer] if self.login else [])]
        if self.secrets_of_url and not all(map(is_loopback_or_https, reached)):
            raise ValueError("a secret is sent over https, or to a loopback address")
        return self

    @property
    def secrets_of_url(self) -> tuple[str, ...]:
        of_login = self.login.secrets if self.login else []
        of_bearer = [self.bearer] if self.bearer else []
        return (*of_bearer, *of_login, *self.headers.values())

    @property
    def host_files(self) -> list[Path]:
        """The files that a server on the host runs, imports or reads, but for its
        `data`: its folder, its program, and all that may be a path in `args` and `env`.
        """
        if self.where == "cell" or self.command is None:
            return []
        folder, program = self.folder or Path(), self.command
        if "/" not in program:
            program = which(program, path=self.env.get("PATH", SYSTEM_PATH)) or ""
        loaded = [text for name, text in self.env.items() if name.upper() in _OF_CODE]
        code = [program, *_paths_in(loaded)]
        named = map(folder.joinpath, _paths_in([*self.args, *self.env.values()]))
        return [
            *([self.folder] if self.folder else []),
            *(folder / each for each in code if each),
            *(path for path in named if not self._is_data(path)),
        ]

    def _is_data(self, path: Path) -> bool:
        place = Path(os.path.abspath(path))
        return any(place.is_relative_to(os.path.abspath(each)) for each in self.data)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The references of all secrets in it."""
        return (*self.secret_env.values(), *self.secrets_of_url)


def _paths_in(texts: Iterable[str]) -> Iterator[str]:
    """Yield what may be paths: of `-Ia`, `--file=a`, `file:///a`, `/a:/b`, `@a`, the
    text of a shell and JSON, too."""
    for text in texts:
        parts = {text, *chain.from_iterable(re.split(cut, text) for cut in _CUTS)}
        for part in filter(None, parts):
            yield part
            yield _OPTION.sub("", part)
            if re.match("-[^-].", part, re.DOTALL):
                yield part[2:]
