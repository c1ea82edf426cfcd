"""The configuration of a host: `toolcell.toml` as models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import (
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from toolcell.core import ConfigError, PolicyError
from toolcell.core.paths import places_on_the_way
from toolcell.core.secrets import SecretReference
from toolcell.guard import AgentPolicy, load_policies
from toolcell.sandbox import SandboxConfig

from .base import ADDRESS, IMPORT_PATH, Count, FilePath, Model, Seconds
from .cluster import ClusterConfig
from .console import ConsoleConfig
from .mounted import Mounted, why_no_folder, why_not_mounted
from .sandbox_api import SandboxAPIConfig
from .server import AuthConfig, ServerConfig
from .source import read_source
from .tools import ToolsConfig
from .webhooks import WebhookConfig


class FlowsConfig(Model):
    """Graphs that the host runs in threads, for `toolcell flow` and `Host.flows`.

    Threads are stored in `state.folder`, or in Redis.
    """

    graphs: tuple[Annotated[str, Field(pattern=IMPORT_PATH)], ...] = ()
    """Graphs as `package.module:name`, imported like `tools.python` when a host
    starts."""

    agent: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The agent that makes the calls of new threads, and whose questions people answer;
    it needs a policy. None: calls name no agent, and so are refused."""

    max_concurrency: Count = 16
    """Tasks of one thread at once. When it is reached further ones wait."""

    history_days: Count | None = None
    """Days for which threads stay that are done or were cancelled. When they are over,
    `toolcell flow work` deletes them, and `toolcell flow prune` does without `--days`.
    None: they stay."""

    redis_url: SecretReference | None = None
    """A Redis server for the threads, shared by many machines; its keys begin with
    `state.redis_prefix`. None: they are in `state.folder`."""


class StateConfig(Model):
    """The storage of counters, approvals, records and idempotency keys."""

    folder: FilePath | None = None
    """A folder for SQLite files, made with mode 0700, on a local disk. None: in
    memory, lost with the process, and no other process can answer approvals."""

    records_days: Annotated[float, Field(gt=0, le=36_500)] = 30.0
    """Days that records of calls are stored. When it is reached they are deleted, at
    most a thousand with every hundredth call."""

    refused_mib: Annotated[float, Field(gt=0, le=1_048_576)] = 64.0
    """MiB of records of one agent's calls that were never made. When it is reached the
    oldest of these are deleted."""

    redis_url: SecretReference | None = None
    """A Redis server, or a node of a Redis Cluster, for the guard's counters, shared by
    many machines."""

    redis_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")] = "toolcell"
    """Before every key in Redis."""

    on_failure: Annotated[
        str, Field(pattern=r"^(closed|open|local\([1-9][0-9]{0,5}\))$")
    ] = "closed"
    """While the counters cannot be reached: `closed` refuses every call, `local(20)`
    lets each agent make 20 calls, `open` admits what rules allow, uncounted."""

    def folder_for(self, content: str) -> Path:
        """Return the folder, and make it if it is not there.

        Args:
            content: The name of what is kept there, for the error.

        Raises:
            ConfigError: No folder is configured, or it cannot be made.
        """
        if self.folder is None:
            raise ConfigError(
                f"no folder is configured for {content}",
                hint="name a folder in [state]",
            )
        self.make_folder()
        return self.folder

    def has(self, name: str) -> bool:
        """Return True if a file of the folder is there."""
        return self.folder is not None and (self.folder / name).exists()

    def make_folder(self) -> None:
        """Make the folder, if one is configured, for this user alone.

        Raises:
            ConfigError: The folder cannot be made.
        """
        if self.folder is None:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the folder {self.folder} cannot be made: {error.strerror}",
                hint="set state.folder to one that this user may write",
            ) from None


class AuditConfig(Model):
    """The log of decisions and outcomes."""

    path: FilePath | None = None
    """The file. None: nothing is recorded."""

    key: SecretReference | None = None
    """A secret of at least 16 bytes that the hashes are made with. None: plain hashes,
    which anyone can compute."""

    run_records: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """Records of one run in an hour; over REST a token is one run. When it is reached
    further calls of the run are refused until the next hour."""

    rotate_mib: Annotated[int, Field(ge=1, le=1_048_576)] = 256
    """Size of the log's file in MiB. When it is reached the file is renamed after its
    last record, and the log goes on in a new file, with the same chain."""

    keep_files: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Renamed files that stay. When it is reached the oldest is deleted, and a record
    `pruned` says so. None: all stay."""


class ApprovalsConfig(Model):
    """Approval of calls by people, who answer with `toolcell approvals`."""

    wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Seconds that a call waits for an answer. When it is reached the call is refused;
    the same call finds a later answer."""

    expiry_seconds: Seconds = 3_600.0
    """Seconds that a request may be answered and its approval used. When it is reached
    the call has to be asked for again."""

    max_pending: Count = 100
    """Open requests of one agent. When it is reached further calls that need approval
    are refused."""

    auto_approve: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """A name in which every call is approved without a person, in the profile
    `development` only. None: people are asked."""


class LoggingConfig(Model):
    """Log messages, one line each: calls with their ids, and faults. Arguments and
    results are never logged, known secrets and usual forms of them are hidden."""

    format: Literal["none", "text", "json"] = "none"
    """`none` leaves the logger `toolcell` to the program around the host."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged. Calls that fail are warnings."""

    path: FilePath | None = None
    """The file, opened again when it was moved. None: standard error."""


class TelemetryConfig(Model):
    """Traces and metrics of OpenTelemetry; without an SDK in the process, none."""

    exporter: Literal["none", "otlp"] = "none"
    """`otlp` sends traces and metrics as the variables `OTEL_*` say; it needs the
    extra `telemetry`. `none` leaves it to the program around the host."""

    metrics_address: Annotated[str, Field(pattern=ADDRESS)] | None = None
    """`HOST:PORT` where `toolcell serve` answers Prometheus at `/metrics`; it needs the
    extras `telemetry` and `mcp`. Whoever reaches the address reads the names of agents
    and tools, and no token is asked for. None: nowhere."""

    budget_seconds: Seconds = 15.0
    """Seconds between two measurements of what limits leave, while metrics are read.
    When it is reached the store is asked again."""


class HostConfig(Model):
    """The configuration of a host, usually read from `toolcell.toml`.

    Every model is frozen and refuses unknown keys. Defaults are closed: no tool is
    offered, and no agent may call one, until the configuration says so.
    """

    profile: Literal["production", "development"] = "production"
    """`production` refuses `process` isolation, `auto_approve`, `open` failure, and
    `unauthenticated` HTTP."""

    sandbox: SandboxConfig = SandboxConfig()
    """The cells that untrusted code runs in."""

    tools: ToolsConfig = ToolsConfig()
    """The tools of the host."""

    policies: tuple[AgentPolicy, ...] = ()
    """The rights of each agent. An agent without a policy may do nothing."""

    policy_files: tuple[FilePath, ...] = ()
    """More policies, in TOML or YAML files. A name may have `*`, `?` and `[...]`, as in
    `policies/*.toml`: all files that fit are read, also those that are made later,
    but for names that begin with a dot."""

    state: StateConfig = StateConfig()
    """The storage of counters, approvals and records."""

    audit: AuditConfig = AuditConfig()
    """The log of decisions and outcomes."""

    approvals: ApprovalsConfig = ApprovalsConfig()
    """Approval of calls by people."""

    logging: LoggingConfig = LoggingConfig()
    """Log messages."""

    telemetry: TelemetryConfig = TelemetryConfig()
    """Traces and metrics."""

    server: ServerConfig = ServerConfig()
    """The server of `toolcell serve`."""

    auth: AuthConfig = AuthConfig()
    """Authentication over HTTP."""

    sandbox_api: SandboxAPIConfig = SandboxAPIConfig()
    """The sandboxes of `toolcell serve --sandbox-api`."""

    console: ConsoleConfig = ConsoleConfig()
    """The web console for people."""

    webhooks: tuple[WebhookConfig, ...] = ()
    """URLs that get messages about requests for approval."""

    flows: FlowsConfig = FlowsConfig()
    """Graphs that run in threads."""

    cluster: ClusterConfig | None = None
    """The machines that programs run on. None: this one."""

    @model_validator(mode="after")
    def _room_for_sessions(self) -> Self:
        sessions, cells = self.tools.max_sessions, self.sandbox.max_concurrency
        if sessions >= cells and {"code", "files"} & self.tools.groups.keys():
            raise ValueError(
                f"tools.max_sessions ({sessions}) has to be below "
                f"sandbox.max_concurrency ({cells})"
            )
        return self

    @model_validator(mode="after")
    def _webhooks_are_kept(self) -> Self:
        names = [webhook.name for webhook in self.webhooks]
        if len(set(names)) < len(names):
            raise ValueError("two webhooks have one name")
        if names and self.state.folder is None:
            raise ValueError("webhooks need state.folder, which keeps their messages")
        return self

    @model_validator(mode="after")
    def _logins_are_kept(self) -> Self:
        logins = [mcp.login for mcp in self.tools.mcp.values() if mcp.login]
        if self.state.folder is None and any(login.key for login in logins):
            raise ValueError("authorization_code needs state.folder, for its tokens")
        return self

    @field_validator("policy_files")
    @classmethod
    def _patterns_of_one_folder(cls, files: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in files:
            if "**" in str(path):
                raise ValueError(f"{path} has `**`: name the files of each folder")
        return files

    @model_validator(mode="after")
    def _mounts_keep_clear(self, info: ValidationInfo) -> Self:
        mounts = self.mounted()
        trusted = self._trusted_files()
        if info.context:
            trusted.append(info.context["file"])
        start_here = [
            name
            for name, server in self.tools.mcp.items()
            if server.where == "host" and server.folder is None
        ]
        why = why_no_folder(mounts, start_here)
        why = why or why_not_mounted(mounts, self._private_files(), trusted)
        if why:
            raise ValueError(why)
        return self

    def mounted(self) -> list[Mounted]:
        """Return the mounts of all cells. Raises ValueError: one has too many links."""
        cells = {"sandbox.mounts": self.sandbox.mounts}
        for name, server in self.tools.mcp.items():
            cells[f"tools.mcp.{name}.cell.mounts"] = server.cell.mounts
        return [
            Mounted(where, places_on_the_way(mount.source), mount.read_only)
            for where, mounts in cells.items()
            for mount in mounts
        ]

    def _private_files(self) -> list[Path]:
        """Return the files and folders that programs must neither read nor change."""
        oidc, cluster = self.console.oidc, self.cluster
        secrets = [
            self.audit.key,
            self.state.redis_url,
            self.flows.redis_url,
            self.sandbox.package_rules.index_password,
            oidc and oidc.client_secret,
            cluster and cluster.directory,
            cluster and cluster.token,
            *(cluster.drivers.values() if cluster else ()),
            *(credential.value for credential in self.sandbox.credentials),
            *(webhook.secret for webhook in self.webhooks),
            *(secret for mcp in self.tools.mcp.values() for secret in mcp.secrets),
            *(
                secret
                for a in self.tools.openapi.values()
                for secret in a.secrets.values()
            ),
        ]
        files = [
            Path(secret.removeprefix("file:"))
            for secret in secrets
            if secret and secret.startswith("file:")
        ]
        return [*filter(None, (self.state.folder, self.audit.path)), *files]

    def _trusted_files(self) -> list[Path]:
        """Return the files and folders that programs must not change."""
        tools, sandbox = self.tools, self.sandbox
        index = urlsplit(sandbox.package_rules.index_url or "")
        found: list[Path | str | None] = [
            self.logging.path,
            tools.mcp_pins if tools.mcp else None,
            tools.openapi_pins if tools.openapi else None,
            *(api.document for api in tools.openapi.values()),
            *(file for server in tools.mcp.values() for file in server.host_files),
            # Programs could put a link to the state there.
            tools.database.path if tools.database else None,
            sandbox.network.server_ca,
            sandbox.package_rules.folder,
            unquote(index.path) if index.scheme == "file" else None,
            *sandbox.interpreters,
        ]
        files = [Path(each) for each in found if each]
        # Whatever is put beside the files of a pattern may count.
        beside = [path.parent for path in self.policy_files if _is_pattern(path)]
        return [*beside, *self.policy_paths(), *tools.folders, *files]

    @model_validator(mode="after")
    def _safe_in_production(self) -> Self:
        if self.profile != "production":
            return self
        refused = {
            'sandbox.minimum_isolation = "process"': self.sandbox.minimum_isolation
            == "process",
            "approvals.auto_approve": self.approvals.auto_approve is not None,
            'state.on_failure = "open"': self.state.on_failure == "open",
            "auth.unauthenticated": self.auth.unauthenticated,
        }
        if any(refused.values()):
            names = ", ".join(name for name, met in refused.items() if met)
            raise ValueError(f"the profile 'production' refuses {names}")
        return self

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
    ) -> HostConfig:
        """Read a TOML file, and the variables of the environment that override it.

        Relative paths in it start at its folder. Nothing is opened or imported.

        Args:
            path: The file.
            environ: The environment; default that of this process.

        Raises:
            ConfigError: It cannot be read or used; the message names line and column,
                or the variable.
        """
        source = read_source(Path(path), os.environ if environ is None else environ)
        file = source.path.absolute()
        context = {"folder": file.parent, "file": file}
        try:
            return TypeAdapter(cls).validate_python(source.document, context=context)
        except ValidationError as error:
            raise source.error(error, cls) from None

    def all_policies(self) -> list[AgentPolicy]:
        """Return the policies of this configuration and of its files.

        Raises:
            PolicyError: A file cannot be used, or none fits a pattern.
        """
        found = list(self.policies)
        for pattern in self.policy_files:
            paths = _fitting(pattern)
            if not paths:
                raise PolicyError(
                    f"no file fits {pattern}",
                    hint="make one, or leave the pattern out of `policy_files`",
                )
            for path in paths:
                found += load_policies(path)
        return found

    def policy_paths(self) -> list[Path]:
        """Return the files of policies; of patterns those that are there now."""
        return [path for pattern in self.policy_files for path in _fitting(pattern)]


def _fitting(pattern: Path) -> list[Path]:
    """Return the files whose names fit a pattern, by name; a plain path as it is.

    A name that begins with a dot fits only a pattern that does so, as in a shell.
    """
    if not _is_pattern(pattern) or os.path.lexists(pattern):
        return [pattern]
    names = glob(pattern.name, root_dir=pattern.parent)
    return [pattern.parent / name for name in sorted(names)]


def _is_pattern(path: Path) -> bool:
    return any(sign in path.name for sign in "*?[")
