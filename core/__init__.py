"""The words that every room speaks."""

from . import platform  # noqa: F401
from .addresses import is_public_address
from .errors import (
    AuditError,
    CallFailedError,
    CellLostError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ConfigError,
    DuplicateToolError,
    GuardDeniedError,
    GuardError,
    InvalidInputError,
    PackageError,
    PolicyError,
    SandboxError,
    SandboxUnavailableError,
    StoreUnavailableError,
    ToolcellError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolTimeoutError,
    ToolValidationError,
)
from .messages import ErrorInfo, Message, Role, ToolCall, ToolResult, ToolStatus
from .models import FrozenModel, put_together
from .protocols import (
    CallProtocol,
    CheckpointerCapabilities,
    CheckpointerProtocol,
    ModelChunk,
    ModelProtocol,
    ModelResponse,
    ToolProtocol,
)
from .storage.fork_safe_lock import ForkLock, awaited_lock
from .storage.process_lease import OwnerFile
from .storage.sqlite import SharedDatabase, open_sqlite
from .text.json_size import count_values
from .text.strict_json import read_json

__all__ = [
    "AuditError",
    "CallFailedError",
    "CallProtocol",
    "CellLostError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointSerializationError",
    "CheckpointerCapabilities",
    "CheckpointerProtocol",
    "ConfigError",
    "DuplicateToolError",
    "ErrorInfo",
    "ForkLock",
    "FrozenModel",
    "GuardDeniedError",
    "GuardError",
    "InvalidInputError",
    "Message",
    "ModelChunk",
    "ModelProtocol",
    "ModelResponse",
    "OwnerFile",
    "PackageError",
    "PolicyError",
    "Role",
    "SandboxError",
    "SandboxUnavailableError",
    "SharedDatabase",
    "StoreUnavailableError",
    "ToolCall",
    "ToolError",
    "ToolExecutionError",
    "ToolNotFoundError",
    "ToolProtocol",
    "ToolResult",
    "ToolStatus",
    "ToolTimeoutError",
    "ToolValidationError",
    "ToolcellError",
    "awaited_lock",
    "count_values",
    "is_public_address",
    "open_sqlite",
    "put_together",
    "read_json",
]
