"""Every error that toolcell raises on purpose, as one tree.

    ToolcellError
    ├── ConfigError                     the configuration cannot be used
    ├── InvalidInputError               an argument of a call cannot be used
    ├── SandboxError                    we could not run it
    │   ├── SandboxUnavailableError     no place with the isolation asked for
    │   ├── CellLostError               the place went away during the run
    │   └── PackageError                a package is refused, missing or unfit
    ├── CallFailedError                 a function called in a cell did not return
    ├── ModelError
    │   ├── ModelAuthError
    │   ├── ModelResponseError
    │   └── ModelThrottledError
    ├── ToolError
    │   ├── ToolNotFoundError
    │   ├── DuplicateToolError
    │   ├── ToolValidationError
    │   ├── ToolTimeoutError
    │   └── ToolExecutionError
    ├── GuardError
    │   ├── GuardDeniedError
    │   ├── PolicyError
    │   ├── StoreUnavailableError
    │   └── AuditError
    ├── CheckpointError
    │   ├── CheckpointNotFoundError
    │   └── CheckpointSerializationError
    └── FlowError
        ├── GraphError                  a graph cannot be run
        ├── NodeFailedError             a node, route or reducer failed
        ├── FlowConflictError           two tasks of a step wrote one field
        ├── FlowLimitError              a limit of a thread was reached
        ├── ReplayError                 code and journal disagree
        ├── InterruptDeniedError        a question was denied, or expired
        ├── ThreadBusyError             another owner runs the thread
        └── LeaseLostError              the thread was taken from its owner

Catch the base for one handler, a subclass for a different recovery. A program
that fails is never an error here: it is an `ExecutionResult` with a status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal


class ToolcellError(Exception):
    """The base of every error of this package.

    Args:
        message: What went wrong, for people.
        hint: Advice for the caller; default the class's `default_hint`.
        details: Facts for machines, JSON values only.
    """

    kind: ClassVar[str] = "toolcell"
    """A short, stable id for logs and metrics."""

    retryable: ClassVar[bool] = False
    """True if the same call may succeed later without a change."""

    default_hint: ClassVar[str | None] = None
    """A hint for every error of the class; None: each raise gives its own."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(ToolcellError):
    """The configuration is missing, unreadable or contradicts itself."""

    kind = "config"


class InvalidInputError(ToolcellError):
    """An argument given to a public call cannot be used."""

    kind = "invalid_input"


class SandboxError(ToolcellError):
    """We could not run the program; says nothing about the program."""

    kind = "sandbox"


class SandboxUnavailableError(SandboxError):
    """No place to run with the isolation, image or room that was asked for."""

    kind = "sandbox.unavailable"
    retryable = True


class CellLostError(SandboxError):
    """The cell went away, or broke the protocol, before the result was in."""

    kind = "sandbox.cell_lost"
    retryable = True
    default_hint = "run it again, in a new session if it was in one"


class PackageError(SandboxError):
    """A package may not be installed, cannot be found, or does not fit.

    `details["reason"]` is `not_allowed`, `not_found`, `no_wheel`, `conflict`,
    `unreachable`, `refused`, `timeout`, `not_a_file` or `failed`; of packages of npm
    also `not_from_registry` and `needs_script`.
    """

    kind = "sandbox.package"


class CallFailedError(ToolcellError):
    """A function called in a cell did not return a value.

    Args:
        message: What went wrong, for people.
        result: The `ExecutionResult` of the run, with status and output.
        hint: What to do about it.
    """

    kind = "call_failed"

    def __init__(self, message: str, *, result: Any, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, details={"status": result.status})
        self.result = result


class ModelError(ToolcellError):
    """A model could not be asked, or its answer cannot be used.

    Args:
        message: What went wrong, for people.
        hint: What to do about it.
        details: Facts for machines, JSON values only.
        reason: What a caller can do: `retry`, `rotate` (use another key or model),
            `compact` (shorten the conversation), `give_up`. None: nobody knows. It
            stands in the details.
    """

    kind = "model"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
        reason: Literal["retry", "rotate", "compact", "give_up"] | None = None,
    ) -> None:
        given = dict(details or {})
        if reason is not None:
            given["reason"] = reason
        super().__init__(message, hint=hint, details=given)
        self.reason = reason


class ModelAuthError(ModelError):
    """The provider refused the key, or what it may do."""

    kind = "model.auth"


class ModelResponseError(ModelError):
    """The answer is not one that can be used."""

    kind = "model.response"


class ModelThrottledError(ModelError):
    """The provider asks to wait; `details["retry_after"]` may say how many seconds."""

    kind = "model.throttled"
    retryable = True


class ToolError(ToolcellError):
    """A tool could not be found, validated or run."""

    kind = "tool"


class ToolNotFoundError(ToolError):
    """No tool of this name is open to this agent."""

    kind = "tool.not_found"


class DuplicateToolError(ToolError):
    """A tool of this name and version is already registered."""

    kind = "tool.duplicate"


class ToolValidationError(ToolError):
    """The arguments do not fit the tool's schema."""

    kind = "tool.validation"


class ToolTimeoutError(ToolError):
    """The tool was stopped at its deadline."""

    kind = "tool.timeout"


class ToolExecutionError(ToolError):
    """The tool itself failed."""

    kind = "tool.execution"


class GuardError(ToolcellError):
    """The guard refused a call, or could not decide about it."""

    kind = "guard"


class GuardDeniedError(GuardError):
    """The policy does not allow this call, or not now."""

    kind = "guard.denied"


class PolicyError(GuardError):
    """A policy cannot be used as written."""

    kind = "guard.policy"


class StoreUnavailableError(GuardError):
    """The guard's store did not answer in time."""

    kind = "guard.store_unavailable"
    retryable = True
    default_hint = "try again; if it stays so, look after the store's server or disk"


class AuditError(GuardError):
    """The audit log cannot be written, or does not verify."""

    kind = "guard.audit"


class CheckpointError(ToolcellError):
    """A checkpoint could not be saved or loaded."""

    kind = "checkpoint"


class CheckpointNotFoundError(CheckpointError):
    """There is no such checkpoint."""

    kind = "checkpoint.not_found"


class CheckpointSerializationError(CheckpointError):
    """The state cannot be written to, or read from, a checkpoint."""

    kind = "checkpoint.serialization"


class FlowError(ToolcellError):
    """A thread of a graph could not go on."""

    kind = "flow"


class GraphError(FlowError):
    """A graph cannot be run; `details["problems"]` has all that is wrong with it."""

    kind = "flow.graph"


class NodeFailedError(FlowError):
    """A node, a route or a reducer raised, or ran out of time.

    The raised exception is the cause. Its text is not in the message, which is stored
    with the thread. `details` has the thread, step, task, node and the type of the
    exception.
    """

    kind = "flow.node"


class FlowConflictError(FlowError):
    """Two tasks of one step wrote a field that has no reducer."""

    kind = "flow.conflict"


class FlowLimitError(FlowError):
    """A limit of `FlowLimits` was reached; `details` has its name and value."""

    kind = "flow.limit"


class ReplayError(FlowError):
    """A node that runs again asks for something else than was written down."""

    kind = "flow.replay"


class InterruptDeniedError(FlowError):
    """A question was denied, or expired; `details["reason"]` says which."""

    kind = "flow.denied"


class ThreadBusyError(FlowError):
    """Another owner runs the thread."""

    kind = "flow.busy"
    retryable = True
    default_hint = "wait until it has ended, then ask again"


class LeaseLostError(FlowError):
    """The thread was taken from its owner; what was not written is not written."""

    kind = "flow.lease_lost"
