"""Makes the components of a host from its configuration.

`open_components` opens them in the order of their dependencies: the guard with its
store, approvals and audit log; logging; the registry of tools; the sandbox, if a tool
needs cells; the executor that makes every call; and the sessions of code. Commands that
need less call the smaller functions: `toolcell policy` opens the guard alone, and
`toolcell tools` lists the registry and opens nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.secrets import read_secret
from toolcell.guard import (
    ActionGuard,
    Approvals,
    ApprovalStore,
    AuditLog,
    AutoApprove,
    MemoryStore,
    Redactor,
    RedisStore,
    SQLiteStore,
    Store,
)
from toolcell.guard.spi import audit_search
from toolcell.sandbox import Sandbox, SandboxManager
from toolcell.tools import (
    CodeExecutor,
    ConcurrentExecutor,
    Records,
    SQLiteIdempotency,
    SQLiteRecords,
    ToolRegistry,
)
from toolcell.tools.builtin import code_mode_tools, code_tools, workspace_tools
from toolcell.tools.spi import (
    CodeSessions,
    MCPActs,
    MemoryIdempotency,
    MemoryRecords,
    ObservedRecords,
    SessionEnds,
    SQLiteSessionEnds,
)

from ..config.host_config import HostConfig
from ..operator.event_bus import EventBus
from ..operator.live_calls import LiveCalls
from ..operator.pictures import PICTURES_FILE, Pictures
from ..webhooks.sender import make_webhooks
from .active_calls import ActiveCalls
from .caller_approval import ask_caller
from .cluster import open_sandbox
from .flows import open_flows
from .logs import open_logging
from .mcp_toolsets import listed_toolsets, make_toolsets
from .openapi_toolsets import listed_apis, make_apis
from .registry import make_registry, wanted

if TYPE_CHECKING:
    from toolcell.flow import Flow

_log = logging.getLogger(__name__)
APPROVALS_FILE = "approvals.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardComponents:
    """The guard and what it writes to, all of it open."""

    guard: ActionGuard
    approvals: Approvals
    audit: AuditLog | None
    redactor: Redactor


@dataclass(frozen=True, slots=True, kw_only=True)
class HostComponents:
    """The parts of a host, all of them open."""

    guard: ActionGuard
    approvals: Approvals
    audit: AuditLog | None
    redactor: Redactor
    registry: ToolRegistry
    executor: ConcurrentExecutor
    mcp_acts: MCPActs
    sandbox: Sandbox | None
    sessions: CodeSessions | None
    flows: Mapping[str, Flow[Any]]
    live_calls: LiveCalls
    active_calls: ActiveCalls
    event_bus: EventBus


async def open_components(
    config: HostConfig, environ: Mapping[str, str], stack: AsyncExitStack
) -> HostComponents:
    """Open all components of a host.

    Args:
        config: The configuration.
        environ: The environment, from which `env:` secrets are read.
        stack: Closes every component again, in reverse order, when it is left.

    Raises:
        ToolcellError: A component cannot be opened; the stack closes the others.
    """
    event_bus = EventBus()
    counters_are_lost = lacks_counters(config)
    guarding = open_guard(config, environ, stack)
    event_bus.follow_guard(guarding.guard)
    open_logging(config.logging, guarding.redactor, stack)
    if counters_are_lost:
        _log.warning(
            "guard.db is new or empty, and the audit log has calls: budgets and rate"
            " limits begin anew"
        )
    registry = make_registry(config, guarding.guard)
    secrets = read_secrets(config, environ)
    toolsets = make_toolsets(config, secrets)
    for toolset in toolsets:
        registry.register_many((await stack.enter_async_context(toolset)).tools)
    for api in make_apis(config, secrets):
        registry.register_many(api.tools)
    sandbox = sessions = None
    if needs_sandbox(config, registry):
        sandbox = await open_sandbox(config, environ, stack, event_bus)
    live_calls = LiveCalls(event_bus, open_pictures(config, stack))
    executor = make_executor(config, registry, guarding, sandbox, live_calls, stack)
    if sandbox is not None and needs_sessions(config):
        ends = open_session_ends(config, stack)
        sessions = make_sessions(config, sandbox, guarding.guard, ends)
        event_bus.follow_sessions(sessions)
        await stack.enter_async_context(sessions)
        add_code(config, executor, sandbox, sessions)
    flows = await open_flows(config, environ, executor, stack)
    webhooks = make_webhooks(config, secrets, guarding.approvals, guarding.redactor)
    if webhooks is not None:
        await stack.enter_async_context(webhooks)
    return HostComponents(
        guard=guarding.guard,
        approvals=guarding.approvals,
        audit=guarding.audit,
        redactor=guarding.redactor,
        registry=registry,
        executor=executor,
        mcp_acts=MCPActs(executor, toolsets),
        sandbox=sandbox,
        sessions=sessions,
        flows=flows,
        live_calls=live_calls,
        active_calls=ActiveCalls(config.server.max_requests),
        event_bus=event_bus,
    )


def list_registry(config: HostConfig, guard: ActionGuard) -> ToolRegistry:
    """Return the tools for display; nothing is opened, and none can be called.

    Raises:
        ToolcellError: As `make_registry`.
    """
    registry = make_registry(config, guard)
    for toolset in listed_toolsets(config):
        registry.register_many(toolset.tools)
    for api in listed_apis(config):
        registry.register_many(api.tools)
    if needs_sessions(config):
        sandbox = SandboxManager(config.sandbox)
        executor = ConcurrentExecutor(registry, guard=guard)
        add_code(config, executor, sandbox, make_sessions(config, sandbox, guard))
    return registry


def open_guard(
    config: HostConfig, environ: Mapping[str, str], stack: AsyncExitStack
) -> GuardComponents:
    """Open the guard alone, with the state that it shares with other processes.

    Raises:
        ToolcellError: The audit log, the approvals or the store cannot be opened.
    """
    secrets = read_secrets(config, environ)
    redactor = Redactor(secrets=secrets.values())
    config.state.make_folder()
    audit = open_audit(config, secrets, redactor, stack)
    approvals = open_approvals(config, stack, audit, redactor)
    guard = ActionGuard(
        config.all_policies(),
        store=open_store(config, secrets, stack),
        audit=audit,
        approvals=approvals,
        on_store_failure=config.state.on_failure,
    )
    return GuardComponents(
        guard=guard, approvals=approvals, audit=audit, redactor=redactor
    )


def read_secrets(config: HostConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return all secrets that the configuration names, by reference."""
    named = [config.audit.key, config.state.redis_url]
    for server in config.tools.mcp.values():
        named += server.secrets
    for api in config.tools.openapi.values():
        named += api.secrets.values()
    named += [webhook.secret for webhook in config.webhooks]
    return {each: read_secret(each, environ) for each in named if each}


def open_audit(
    config: HostConfig,
    secrets: Mapping[str, Any],
    redactor: Redactor,
    stack: AsyncExitStack,
) -> AuditLog | None:
    """Return the audit log; None: none is configured."""
    settings = config.audit
    if settings.path is None:
        return None
    log = AuditLog(
        settings.path,
        key=secrets.get(settings.key or ""),
        redactor=redactor,
        run_records=settings.run_records,
        rotate_bytes=settings.rotate_mib * 1_048_576,
        keep_files=settings.keep_files,
    )
    return stack.enter_context(log)


def open_approval_store(config: HostConfig) -> ApprovalStore:
    """Return the requests and answers of a configuration, in memory without a folder.

    Raises:
        ConfigError: Its file cannot be opened.
    """
    folder = config.state.folder
    return ApprovalStore(folder / APPROVALS_FILE if folder else None)


def open_approvals(
    config: HostConfig,
    stack: AsyncExitStack,
    audit: AuditLog | None,
    redactor: Redactor,
) -> Approvals:
    """Return the approvals. With a state folder any process can answer them."""
    settings, folder = config.approvals, config.state.folder
    name = settings.auto_approve
    return Approvals(
        stack.enter_context(open_approval_store(config)),
        handler=ask_caller if name is None else AutoApprove(by=name),
        answered_elsewhere=folder is not None,
        wait_seconds=settings.wait_seconds,
        expiry_seconds=settings.expiry_seconds,
        max_pending=settings.max_pending,
        profile=config.profile,
        audit=audit,
        redactor=redactor,
    )


def lacks_counters(config: HostConfig) -> bool:
    """Return True if calls were made here, and the file that counted them is gone.

    Raises:
        AuditError: The audit log cannot be read.
    """
    folder, log = config.state.folder, config.audit.path
    if folder is None or log is None or config.state.redis_url is not None:
        return False
    if _size(log) == 0 or _size(folder / "guard.db") > 0:
        return False
    found = audit_search(log, lambda record: record.get("event") == "decision", limit=1)
    return bool(found.entries) or found.next is not None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def open_store(
    config: HostConfig, secrets: Mapping[str, Any], stack: AsyncExitStack
) -> Store:
    """Return the guard's store: in Redis, in a file, or in memory."""
    settings = config.state
    store: Store = MemoryStore()
    if settings.redis_url is not None:
        try:
            url = secrets[settings.redis_url].get_secret_value()
            store = RedisStore(url, prefix=settings.redis_prefix)
        except ConfigError as error:
            # The message of redis repeats the URL, and with it a password.
            raise ConfigError(
                f"state.redis_url: {settings.redis_url} cannot be used", hint=error.hint
            ) from None
    elif settings.folder is not None:
        store = SQLiteStore(settings.folder / "guard.db")
    stack.push_async_callback(store.aclose)
    return store


def needs_sandbox(config: HostConfig, registry: ToolRegistry) -> bool:
    """Return True if any tool runs in cells."""
    sandboxed = any(tool.sandboxed for tool in registry.snapshot())
    return sandboxed or needs_sessions(config)


def needs_sessions(config: HostConfig) -> bool:
    """Return True if any tool runs in sessions of code."""
    return config.server.code_mode or not {"code", "files"}.isdisjoint(
        config.tools.groups
    )


def open_session_ends(config: HostConfig, stack: AsyncExitStack) -> SessionEnds:
    """Return what keeps why sessions ended, with a state folder over restarts."""
    if config.state.folder is None:
        return SessionEnds()
    ends = SQLiteSessionEnds(config.state.folder / "sessions.db")
    stack.callback(ends.close)
    return ends


def make_sessions(
    config: HostConfig,
    sandbox: Sandbox,
    guard: ActionGuard,
    ends: SessionEnds | None = None,
) -> CodeSessions:
    """Return the sessions of code. Raises ConfigError."""
    most = config.tools.max_sessions
    return CodeSessions(sandbox, max_sessions=most, guard=guard, ends=ends)


def add_code(
    config: HostConfig,
    executor: ConcurrentExecutor,
    sandbox: Sandbox,
    sessions: CodeSessions,
) -> None:
    """Add the tools that run in sessions of code; their programs use `executor`.

    Raises:
        DuplicateToolError: Two tools have the same name.
    """
    registry, groups = executor.registry, config.tools.groups
    settings = config.tools.code
    asking = settings.model_dump(include={"approval_seconds", "asks_without_session"})
    limits = settings.model_dump(include={"max_calls", "max_concurrency", "max_depth"})
    code = CodeExecutor(sandbox, registry, executor=executor, **limits)
    options: dict[str, Any] = {"executor": code, "sessions": sessions, **asking}
    if "code" in groups:
        tools = code_tools(sandbox, **options)
        registry.register_many(wanted(tools, groups["code"]))
    if config.server.code_mode:
        registry.register_many(code_mode_tools(sandbox, **options))
    if "files" in groups:
        registry.register_many(wanted(workspace_tools(sessions), groups["files"]))


def make_executor(
    config: HostConfig,
    registry: ToolRegistry,
    guarding: GuardComponents,
    sandbox: Sandbox | None,
    live_calls: LiveCalls,
    stack: AsyncExitStack,
) -> ConcurrentExecutor:
    """Return the executor, through which every call goes."""
    folder: Path | None = config.state.folder
    keys: MemoryIdempotency | SQLiteIdempotency = MemoryIdempotency()
    if folder is not None:
        keys = SQLiteIdempotency(folder / "idempotency.db")
        stack.callback(keys.close)
    records = open_records(config, stack)
    with suppress(StoreUnavailableError):
        # What is damaged stands in the log from the start on.
        records.check()
    return ConcurrentExecutor(
        registry,
        guard=guarding.guard,
        sandbox=sandbox,
        records=ObservedRecords(records),
        idempotency=keys,
        watcher=live_calls,
        redactor=guarding.redactor,
        timeout_seconds=config.tools.timeout_seconds,
        tell_remaining=config.tools.tell_remaining,
        max_concurrency=config.tools.max_concurrency,
        max_wait_seconds=config.tools.max_wait_seconds,
    )


def open_records(config: HostConfig, stack: AsyncExitStack | ExitStack) -> Records:
    """Return the records of calls, of every process with the same state folder."""
    state = config.state
    if state.folder is None:
        return MemoryRecords()
    records = SQLiteRecords(
        state.folder / "records.db",
        keep_days=state.records_days,
        refused_mib=state.refused_mib,
    )
    stack.callback(records.close)
    return records


def open_pictures(
    config: HostConfig, stack: AsyncExitStack | ExitStack
) -> Pictures | None:
    """Return the pictures of calls, kept as long as records; None: no state is."""
    state = config.state
    if state.folder is None:
        return None
    path = state.folder / PICTURES_FILE
    return stack.enter_context(Pictures(path, days=state.records_days))
