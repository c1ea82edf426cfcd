"""The tools of a host: `[tools]` of its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, IPvAnyNetwork, model_validator

from toolcell.core.addresses import is_loopback_or_https
from toolcell.core.secrets import SecretReference

from .base import IMPORT_PATH, Count, FilePath, Model, Seconds
from .mcp_servers import MCPName, MCPServerConfig

_URL = r"^https?://[^\s/?#@]+(/[^\s#]*)?$"
_SERVER = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"


class OpenAPIConfig(Model):
    """An HTTP API whose operations are offered as tools, once they are approved with
    `toolcell tools pin`."""

    document: FilePath | None = None
    """The OpenAPI document: a file in JSON or YAML."""

    url: Annotated[str, Field(pattern=_URL)] | None = None
    """The URL of the document, if it is no file. It is fetched by `toolcell tools
    pin`, and by a host before the first call and once an hour."""

    server: Annotated[str, Field(pattern=_SERVER)]
    """The URL that requests go to, such as `https://api.example.com/v1`. Servers that
    the document names do not count, and redirects are not followed."""

    secrets: dict[Annotated[str, Field(min_length=1)], SecretReference] = Field(
        default_factory=dict
    )
    """Secrets by the names of the document's security schemes:
    `{ api_key = "env:PETS_KEY" }`. One for `basic` is `user:password`."""

    operations: tuple[Annotated[str, Field(min_length=1)], ...] = ("*",)
    """The operations to offer, by name; `*` stands for any text. `toolcell tools pin`
    refuses one that matches none."""

    prefix: MCPName | None = None
    """Before the names of its tools, as `prefix__operation`. None: the name of the
    table."""

    networks: tuple[IPvAnyNetwork, ...] = ()
    """Addresses that may be reached although they are not public, such as
    `10.1.0.0/16`."""

    idempotent: tuple[str, ...] = ()
    """Operations that may be called again when the outcome of a call is not known."""

    timeout_seconds: Seconds = 30.0
    """Seconds of a call. When it is reached the connection is cut, and the call ends as
    `timeout`."""

    max_bytes: Count = 1_000_000
    """Bytes of an answer. When it is reached the call fails."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.document is None) == (self.url is None):
            raise ValueError("write either a document or a url")
        if self.secrets and not is_loopback_or_https(self.server):
            raise ValueError("a secret is sent over https, or to a loopback address")
        return self


Group = Literal["arithmetic", "clock", "code", "database", "files", "http"]
FileTool = Literal["read_file", "write_file", "edit_file", "list_files", "search_files"]
PlainTool = Literal["calculate", "get_today_date", "http_get", "query_sqlite"]
CodeTool = Literal["run_python", "run_shell"]
Builtin = Literal[Group, PlainTool, CodeTool, FileTool]
_GROUPS: dict[Group, tuple[str, ...]] = {
    "arithmetic": ("calculate",),
    "clock": ("get_today_date",),
    "code": get_args(CodeTool),
    "database": ("query_sqlite",),
    "files": get_args(FileTool),
    "http": ("http_get",),
}


class HTTPConfig(Model):
    """The limits of `http_get`."""

    hosts: tuple[str, ...] = ()
    """Names such as `example.com`; `*.example.com` for all below it; `*` for every
    public host. Empty: none."""

    max_bytes: Count = 1_000_000
    """Bytes of a body. When it is reached the rest is not read."""

    timeout_seconds: Seconds = 20.0
    """Seconds of a call. When it is reached the call ends as `timeout`."""


class CodeConfig(Model):
    """The limits of programs that `run_python` runs, when they call tools."""

    max_calls: Count = 100
    """Calls of one program, those of programs inside it included, each of 25,000 values
    at most and 1,000 on average. When it is reached further ones fail in the
    program."""

    max_concurrency: Count = 8
    """Calls of one program at once. When it is reached further ones wait."""

    max_depth: Annotated[int, Field(ge=1, le=16)] = 2
    """Programs inside programs: 1 lets none run another. When it is reached the tool
    that tries fails."""

    approval_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Seconds that the calls of one program of a session may wait for a person, in
    total; its wall clock is paused meanwhile. When it is reached a call that waits is
    denied, and the program goes on. 0 asks no person."""

    asks_without_session: bool = False
    """If true, calls of programs without a session wait for a person as well; if
    false they are denied at once."""


class DatabaseConfig(Model):
    """The database that `query_sqlite` reads."""

    path: FilePath
    """An SQLite file."""

    max_rows: Count = 1_000
    """Rows of an answer. When it is reached the rest is left out."""


class ToolsConfig(Model):
    """The tools of the host. An agent sees and calls those that its policy allows."""

    builtin: tuple[Builtin, ...] = ()
    """Tools that come with toolcell, by name or by group: `arithmetic` (calculate),
    `clock` (get_today_date), `code` (run_python, run_shell), `database` (query_sqlite),
    `files` (read_file, write_file, edit_file, list_files, search_files, in the work dir
    of the session's programs), `http` (http_get)."""

    python: tuple[Annotated[str, Field(pattern=IMPORT_PATH)], ...] = ()
    """Tools of your own as `package.module:name`; the name is a tool, a function, or
    a list of them. They are imported when a host starts, and run unconfined unless
    they are made with `sandboxed=True`."""

    entry_points: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Names of entry points of installed packages, in the group `toolcell.tools`; each
    leads to what `python` names, and is loaded like it. Others are not loaded."""

    folders: tuple[FilePath, ...] = ()
    """Folders to import `python` from, beside those where Python looks."""

    http: HTTPConfig = HTTPConfig()
    """For the group `http`."""

    code: CodeConfig = CodeConfig()
    """For the group `code`."""

    database: DatabaseConfig | None = None
    """For the group `database`, which needs it."""

    mcp: dict[MCPName, MCPServerConfig] = Field(default_factory=dict)
    """MCP servers whose tools are offered, each in its own table."""

    mcp_pins: Annotated[FilePath, Field(validate_default=True)] = Path("mcp_pins.json")
    """The definitions of MCP tools that were approved; `toolcell tools pin` writes
    it. A tool that is not in it, or that its server changed since, is not called."""

    openapi: dict[MCPName, OpenAPIConfig] = Field(default_factory=dict)
    """HTTP APIs whose operations are offered, each in its own table."""

    openapi_pins: Annotated[FilePath, Field(validate_default=True)] = Path(
        "openapi_pins.json"
    )
    """The operations that were approved; `toolcell tools pin` writes it. One that is
    not in it, or that its document changed since, is not called."""

    timeout_seconds: Seconds = 30.0
    """Seconds of a call to a tool that names no timeout. When it is reached the call
    ends as `timeout`."""

    tell_remaining: bool = False
    """If true, each result says what the agent's limits leave, so that it can plan."""

    max_concurrency: Count = 10
    """Calls at once. When it is reached others wait their turn; agents take turns, and
    once a second one has called, the last is for agents that make no other call."""

    max_wait_seconds: Seconds = 300.0
    """Seconds for which a call waits for its turn. When it is reached the call fails,
    and nothing was done."""

    max_sessions: Annotated[int, Field(ge=1, le=4095)] = 8
    """Sessions of code and files open at once, of all agents. When it is reached the
    agent that has most loses the one that has been idle longest; if all of those are at
    work, an agent that has none or two fewer waits for the next, up to
    `sandbox.limits.wall_seconds`, and others are refused. Idle ones end after
    `sandbox.session_idle_seconds`."""

    @property
    def groups(self) -> dict[Group, set[str]]:
        """The groups of `builtin`, each with those of its tools that are wanted."""
        wanted: set[str] = set(self.builtin)
        found = {
            group: set(names) if group in wanted else wanted.intersection(names)
            for group, names in _GROUPS.items()
        }
        return {group: names for group, names in found.items() if names}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if "database" in self.groups and self.database is None:
            raise ValueError("the group 'database' needs a table [tools.database]")
        prefixes = [
            *(each.prefix or name for name, each in self.mcp.items()),
            *(each.prefix or name for name, each in self.openapi.items()),
        ]
        if len({prefix.lower() for prefix in prefixes}) < len(prefixes):
            raise ValueError("two MCP servers or APIs have one prefix")
        if self.mcp.keys() & self.openapi.keys():
            raise ValueError("an MCP server and an API have one name")
        return self
