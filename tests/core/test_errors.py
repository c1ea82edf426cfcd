"""The error tree, and who raises what for which bad input.

Rows LC-14..LC-18, LC-20 and RG-29.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from toolcell import core
from toolcell.core import (
    CallFailedError,
    CellLostError,
    CheckpointError,
    ConfigError,
    FlowError,
    GuardError,
    InvalidInputError,
    Message,
    ModelError,
    ModelThrottledError,
    SandboxError,
    SandboxUnavailableError,
    ToolCall,
    ToolcellError,
    ToolError,
)
from toolcell.sandbox import ExecutionResult, Limits, SandboxConfig, SandboxManager

from ..conftest import BackendRow

pytestmark = pytest.mark.anyio

TREE = importlib.import_module(ToolcellError.__module__)
CLASSES: list[type[ToolcellError]] = [
    value
    for value in vars(TREE).values()
    if isinstance(value, type) and issubclass(value, ToolcellError)
]
KINDS = {
    "AuditError": "guard.audit",
    "CallFailedError": "call_failed",
    "CellLostError": "sandbox.cell_lost",
    "CheckpointError": "checkpoint",
    "CheckpointNotFoundError": "checkpoint.not_found",
    "CheckpointSerializationError": "checkpoint.serialization",
    "ConfigError": "config",
    "DuplicateToolError": "tool.duplicate",
    "FlowConflictError": "flow.conflict",
    "FlowError": "flow",
    "FlowLimitError": "flow.limit",
    "GraphError": "flow.graph",
    "GuardDeniedError": "guard.denied",
    "GuardError": "guard",
    "InterruptDeniedError": "flow.denied",
    "InvalidInputError": "invalid_input",
    "LeaseLostError": "flow.lease_lost",
    "ModelAuthError": "model.auth",
    "ModelError": "model",
    "ModelResponseError": "model.response",
    "ModelThrottledError": "model.throttled",
    "NodeFailedError": "flow.node",
    "PackageError": "sandbox.package",
    "PolicyError": "guard.policy",
    "ReplayError": "flow.replay",
    "SandboxError": "sandbox",
    "SandboxUnavailableError": "sandbox.unavailable",
    "StoreUnavailableError": "guard.store_unavailable",
    "ThreadBusyError": "flow.busy",
    "ToolError": "tool",
    "ToolExecutionError": "tool.execution",
    "ToolNotFoundError": "tool.not_found",
    "ToolTimeoutError": "tool.timeout",
    "ToolValidationError": "tool.validation",
    "ToolcellError": "toolcell",
}
"""Names in other people's logs and metrics: they never change."""

RETRYABLE = {
    "CellLostError",
    "ModelThrottledError",
    "SandboxUnavailableError",
    "StoreUnavailableError",
    "ThreadBusyError",
}


def drawn_tree() -> dict[str, str]:
    """Return each class of the drawing with its parent; the root has none."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (TREE.__doc__ or "").splitlines():
        found = re.match(r"^    ([│ ]*(?:├── |└── )?)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            parents[found[2]] = above[depth - 1] if depth else ""
    return parents


def made(kind: type[ToolcellError], message: str, **data: Any) -> ToolcellError:
    """Return an error of a class; one class carries a result instead of details."""
    if issubclass(kind, CallFailedError):
        return kind(message, result=ExecutionResult(status="timeout"))
    return kind(message, **data)


@pytest.mark.promise("LC-14")
def test_the_tree_is_the_one_drawn() -> None:
    built = {kind.__name__: kind.__mro__[1].__name__ for kind in CLASSES}
    built["ToolcellError"] = ""

    assert drawn_tree() == built
    assert ToolcellError.__base__ is Exception
    assert all(len(kind.__bases__) == 1 for kind in CLASSES)


@pytest.mark.promise("LC-15", "LC-16", "LC-17", "LC-18")
@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (ToolcellError, {"ConfigError", "InvalidInputError", "CallFailedError"}),
        (
            SandboxError,
            {"SandboxUnavailableError", "CellLostError", "PackageError"},
        ),
        (
            ModelError,
            {"ModelAuthError", "ModelResponseError", "ModelThrottledError"},
        ),
        (
            ToolError,
            {
                "ToolNotFoundError",
                "DuplicateToolError",
                "ToolValidationError",
                "ToolTimeoutError",
                "ToolExecutionError",
            },
        ),
        (
            GuardError,
            {"GuardDeniedError", "PolicyError", "StoreUnavailableError", "AuditError"},
        ),
        (
            CheckpointError,
            {"CheckpointNotFoundError", "CheckpointSerializationError"},
        ),
        (
            FlowError,
            {
                "FlowConflictError",
                "FlowLimitError",
                "GraphError",
                "InterruptDeniedError",
                "LeaseLostError",
                "NodeFailedError",
                "ReplayError",
                "ThreadBusyError",
            },
        ),
    ],
)
def test_errors_stand_under_their_subject(
    base: type[ToolcellError], expected: set[str]
) -> None:
    leaves = {
        kind.__name__
        for kind in CLASSES
        if kind.__base__ is base and not set(kind.__subclasses__()) & set(CLASSES)
    }
    assert leaves == expected


@pytest.mark.promise("LC-14")
def test_every_error_is_public() -> None:
    assert {kind.__name__ for kind in CLASSES} <= set(vars(core)["__all__"])


@pytest.mark.promise("LC-15")
def test_no_name_clashes_with_pydantic_or_builtins() -> None:
    import builtins

    import pydantic

    names = {kind.__name__ for kind in CLASSES}
    assert not names & (set(dir(builtins)) | set(dir(pydantic)))


@pytest.mark.promise("LC-14")
def test_kinds_are_stable_and_unique() -> None:
    assert {kind.__name__: kind.kind for kind in CLASSES} == KINDS
    assert len(set(KINDS.values())) == len(CLASSES)


@pytest.mark.promise("LC-14")
def test_kinds_begin_with_their_parents_kind() -> None:
    for kind in CLASSES:
        parent = kind.__mro__[1]
        if kind is not ToolcellError and parent is not ToolcellError:
            assert kind.kind.startswith(f"{getattr(parent, 'kind', '')}.")


@pytest.mark.promise("LC-14")
def test_what_may_succeed_later_is_retryable() -> None:
    assert {kind.__name__ for kind in CLASSES if kind.retryable} == RETRYABLE


@pytest.mark.promise("LC-16")
def test_an_error_of_a_model_says_what_to_do() -> None:
    error = ModelError("too long", reason="compact", details={"tokens": 9})

    assert error.reason == "compact"
    assert error.details == {"tokens": 9, "reason": "compact"}
    assert ModelThrottledError("slow down").reason is None
    assert ModelThrottledError.retryable


@pytest.mark.promise("LC-17", "RG-29")
@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_raised_with_its_data(kind: type[ToolcellError]) -> None:
    given = {"limit": 3}
    with pytest.raises(kind) as caught:
        raise made(kind, "too many", hint="ask for fewer", details=given)

    error = caught.value
    assert error.message == "too many"
    assert error.args == ("too many",)
    if isinstance(error, CallFailedError):
        assert error.result == ExecutionResult(status="timeout")
        assert (str(error), error.details) == ("too many", {"status": "timeout"})
        return
    assert str(error) == "too many (ask for fewer)"
    assert (error.hint, error.details) == ("ask for fewer", {"limit": 3})
    given["limit"] = 4
    assert error.details == {"limit": 3}


@pytest.mark.promise("RG-29")
def test_hint_and_details_may_be_left_out() -> None:
    error = ToolcellError("broken")

    assert (str(error), error.hint, error.details) == ("broken", None, {})
    with pytest.raises(TypeError):
        ToolcellError("broken", "by position")  # type: ignore[call-arg]


@pytest.mark.promise("LC-20")
@pytest.mark.parametrize("kind", CLASSES)
def test_one_handler_catches_all_and_one_its_own(kind: type[ToolcellError]) -> None:
    with pytest.raises(ToolcellError):
        raise made(kind, "broken")
    for other in CLASSES:
        assert issubclass(kind, other) is (other in kind.__mro__)


def said_by(error: ToolcellError) -> list[str]:
    return [problem["field"] for problem in error.details["problems"]]


@pytest.mark.promise("LC-15")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"bakend": "docker"}, "bakend"),
        ({"backend": "podman"}, "backend"),
        ({"minimum_isolation": "some"}, "minimum_isolation"),
        ({"minimum_enforcement": "hope"}, "minimum_enforcement"),
        ({"image": ""}, "image"),
        ({"runtime": "run c"}, "runtime"),
        ({"python": "python3"}, "python"),
        ({"env": {"1A": "x"}}, "env.1A.[key]"),
        ({"env": {"A": "x\0y"}}, "env"),
        ({"pool": -1}, "pool"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_queue": -1}, "max_queue"),
        ({"network": {"mode": "all"}}, "network.mode"),
        ({"code_policy": {"allow": ["os"]}}, "code_policy.allow"),
        ({"limits": {"memory": 64}}, "limits.memory"),
        ({"limits": {"memory_mib": -1}}, "limits.memory_mib"),
    ],
)
def test_a_config_that_cannot_be_used(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SandboxConfig(**options)

    assert said_by(caught.value) == [field]
    assert field in str(caught.value)
    assert caught.value.hint


@pytest.mark.promise("LC-15")
def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        SandboxConfig.model_validate({"bakend": "docker", "pool": -1})

    assert sorted(said_by(caught.value)) == ["bakend", "pool"]


@pytest.mark.promise("R66")
def test_names_that_a_stranger_writes_make_no_long_error() -> None:
    """Attack: the name of 4 MB stood in the answer three times, and took 250 ms."""
    call = {"id": "1", "name": "add"}
    for more in ({"x" * 4_000_000: 1}, {"x" * 1_000 + str(n): 1 for n in range(50)}):
        with pytest.raises(InvalidInputError) as caught:
            ToolCall.model_validate({**call, **more})

        names = said_by(caught.value)
        size, longest = len(str(caught.value)), max(map(len, names))
        assert (size < 6_000, longest) == (True, 200)
    assert len(names) == 20
    assert "; and 30 more" in str(caught.value)


@pytest.mark.promise("R66")
def test_a_kind_that_a_stranger_writes_makes_no_long_error() -> None:
    parts = [{"type": "z" * 4_000_000}]
    with pytest.raises(InvalidInputError) as caught:
        Message.model_validate({"role": "user", "content": "", "parts": parts})

    assert len(str(caught.value)) < 3_000


@pytest.mark.promise("LC-15")
@pytest.mark.parametrize("name", [n for n in Limits.model_fields if "stop" not in n])
@pytest.mark.parametrize("value", [-1, 0, float("nan"), float("inf"), "many", 10**13])
def test_a_limit_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        Limits(**{name: value})

    assert said_by(caught.value) == [name]


@pytest.mark.promise("LC-15")
def test_a_contradiction_in_the_config() -> None:
    with pytest.raises(ConfigError, match="never gives 'kernel'") as caught:
        SandboxConfig(backend="subprocess", minimum_isolation="kernel")

    assert said_by(caught.value) == ["SandboxConfig"]


@pytest.mark.promise("LC-15")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall_seconds", 61),
        ("cpus", 1.5),
        ("memory_mib", 257),
        ("pids", 65),
        ("disk_mib", 65),
        ("output_bytes", 1_048_577),
        ("open_files", 257),
        ("code_bytes", 1_048_577),
        ("input_bytes", 33_554_433),
    ],
)
async def test_a_run_cannot_widen_its_limits(
    sandbox: SandboxManager, name: str, value: float
) -> None:
    limits = Limits.model_validate({name: value})

    with pytest.raises(InvalidInputError, match=f"wider here: {name} ") as caught:
        await sandbox.run("1", limits=limits)
    assert caught.value.hint


def loop() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.promise("LC-15")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"code": b"1"}, "code must be str, not bytes"),
        ({"code": None}, "code must be str, not NoneType"),
        ({"code": "x = '\ud83d'"}, "not valid Unicode"),
        ({"code": "#" * 1_048_577}, "has 1048577 bytes, the limit is 1048576"),
        ({"code": "#" * 524_288 + "é" * 262_145}, "has 1048578 bytes"),
        ({"language": "ruby"}, "unknown language 'ruby'"),
        ({"language": None}, "unknown language None"),
        ({"inputs": {"a b": 1}}, "'a b' cannot be a variable"),
        ({"inputs": {"": 1}}, "'' cannot be a variable"),
        ({"inputs": {"class": 1}}, "'class' cannot be a variable"),
        ({"inputs": {"__name__": 1}}, "'__name__' cannot be a variable"),
        ({"inputs": {1: 1}}, "1 cannot be a variable"),
        ({"inputs": {"a": object()}}, "not JSON values"),
        ({"inputs": {"a": {1, 2}}}, "not JSON values"),
        ({"inputs": {"a": b"x"}}, "not JSON values"),
        ({"inputs": {"a": float("nan")}}, "not JSON values"),
        ({"inputs": {"a": float("-inf")}}, "not JSON values"),
        ({"inputs": {"a": "half \ud83d"}}, "not JSON values"),
        ({"inputs": {"a": loop()}}, "not JSON values"),
        ({"inputs": {"a": {1: "an integer key"}}}, "not JSON values"),
        ({"inputs": {"a": "x" * 33_554_432}}, "the inputs have"),
        ({"language": "bash", "inputs": {"ä": 1}}, "cannot be used in bash"),
        ({"language": "bash", "inputs": {"a": "\0"}}, "NUL character"),
    ],
)
async def test_a_program_that_cannot_be_used(
    sandbox: SandboxManager, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(words)) as caught:
        await sandbox.run(**{"code": "1", **options})
    assert caught.value.hint


@pytest.mark.promise("LC-15")
async def test_bash_may_be_told_of_a_nul(sandbox: SandboxManager) -> None:
    result = await sandbox.run(
        'printf %s "$a"', language="bash", inputs={"a": r"no NUL: \u0000"}
    )

    assert (result.status, result.stdout) == ("ok", r"no NUL: \u0000")


@pytest.mark.promise("LC-15")
async def test_a_session_checks_like_a_run(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        with pytest.raises(InvalidInputError, match="not valid Unicode"):
            await session.run("'\ud83d'", fresh=True)
        with pytest.raises(InvalidInputError, match="wall_seconds"):
            await session.run("1", fresh=True, limits=Limits(wall_seconds=61))

        result = await session.run("1 + 1", fresh=True)

    assert result.value == 2


async def test_a_function_that_fails_says_how(sandbox: SandboxManager) -> None:
    def divide(by: int) -> float:
        return 1 / by

    with pytest.raises(CallFailedError, match="division by zero") as caught:
        await sandbox.call(divide, 0)

    result = caught.value.result
    assert isinstance(result, ExecutionResult)
    assert result.status == "error"
    assert caught.value.details == {"status": "error"}
    assert caught.value.hint


@pytest.mark.parametrize("after_use", [False, True])
async def test_a_manager_that_is_not_open(after_use: bool) -> None:
    manager = SandboxManager(SandboxConfig(backend="subprocess"))
    if after_use:
        async with manager:
            pass

    with pytest.raises(SandboxUnavailableError, match="not open") as caught:
        await manager.run("1")
    assert caught.value.hint
    with pytest.raises(SandboxUnavailableError, match="not open"):
        async with manager.session():
            pass


async def test_a_backend_weaker_than_asked() -> None:
    config = SandboxConfig(
        backend="docker", docker_host="tcp://127.0.0.1:9", minimum_isolation="kernel"
    )
    with pytest.raises(SandboxUnavailableError, match="no Docker engine answers") as e:
        async with SandboxManager(config):
            pass
    assert "DOCKER_HOST" in (e.value.hint or "")


async def test_a_cell_that_is_lost_is_our_failure(backend: BackendRow) -> None:
    async with (
        SandboxManager(backend.config()) as manager,
        manager.session() as session,
    ):
        await session.run("1", fresh=True)
        await session._shared.cell.kill()

        with pytest.raises(CellLostError) as caught:
            await session.run("1", fresh=True)
    assert caught.value.hint
