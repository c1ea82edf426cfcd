"""The words that every room speaks."""

from . import unix  # noqa: F401
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
from .fork_lock import ForkLock, awaited_lock
from .json_size import count_values
from .messages import ErrorInfo, Message, Role, ToolCall, ToolResult, ToolStatus
from .model import FrozenModel, put_together
from .owner_file import OwnerFile
from .protocols import (
    CallProtocol,
    CheckpointerCapabilities,
    CheckpointerProtocol,
    ModelChunk,
    ModelProtocol,
    ModelResponse,
    ToolProtocol,
)
from .sqlite import SharedDatabase, open_sqlite
from .strict_json import read_json

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
