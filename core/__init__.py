"""The words that every room speaks."""

import typing

from . import platform  # noqa: F401
from .errors import (
    AuditError,
    CallFailedError,
    CellLostError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ConfigError,
    DuplicateToolError,
    FlowConflictError,
    FlowError,
    FlowLimitError,
    GraphError,
    GuardDeniedError,
    GuardError,
    InterruptDeniedError,
    InvalidInputError,
    LeaseLostError,
    ModelAuthError,
    ModelError,
    ModelResponseError,
    ModelThrottledError,
    NodeFailedError,
    PackageError,
    PolicyError,
    ReplayError,
    SandboxError,
    SandboxUnavailableError,
    StoreUnavailableError,
    ThreadBusyError,
    ToolcellError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolTimeoutError,
    ToolValidationError,
)
from .lazy_face import lazy_face as _lazy_face

if typing.TYPE_CHECKING:
    from .content_parts import ImagePart, Part, TextPart
    from .messages import ErrorInfo, Message, Role, ToolCall, ToolResult, ToolStatus
    from .protocols import (
        CallProtocol,
        CheckpointerCapabilities,
        CheckpointerProtocol,
        ModelChunk,
        ModelProtocol,
        ModelResponse,
        ToolProtocol,
    )

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
    "FlowConflictError",
    "FlowError",
    "FlowLimitError",
    "GraphError",
    "GuardDeniedError",
    "GuardError",
    "ImagePart",
    "InterruptDeniedError",
    "InvalidInputError",
    "LeaseLostError",
    "Message",
    "ModelAuthError",
    "ModelChunk",
    "ModelError",
    "ModelProtocol",
    "ModelResponse",
    "ModelResponseError",
    "ModelThrottledError",
    "NodeFailedError",
    "PackageError",
    "Part",
    "PolicyError",
    "ReplayError",
    "Role",
    "SandboxError",
    "SandboxUnavailableError",
    "StoreUnavailableError",
    "TextPart",
    "ThreadBusyError",
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
]

__getattr__ = _lazy_face(
    __name__,
    {
        ".messages": "ErrorInfo Message Role ToolCall ToolResult ToolStatus",
        ".content_parts": "ImagePart Part TextPart",
        ".protocols": """
            CallProtocol CheckpointerCapabilities CheckpointerProtocol ModelChunk
            ModelProtocol ModelResponse ToolProtocol
        """,
    },
)
