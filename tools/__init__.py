"""What agents can do: tools, their registry, and the executors that call them."""

from .circuit_breaker import CircuitBreaker
from .context import ArtifactSink, Progress, ToolContext
from .idempotency import Idempotency, MemoryIdempotency
from .options import ToolOptions
from .records import MemoryRecords, Records, ToolExecutionRecord
from .registry import Reload, ToolRegistry
from .retries import RetryPolicy
from .snapshot import Snapshot
from .sqlite_idempotency import SQLiteIdempotency
from .sqlite_records import SQLiteRecords
from .tool import FunctionTool, Tool, tool
from .validation import Arguments

__all__ = [
    "Arguments",
    "ArtifactSink",
    "CircuitBreaker",
    "FunctionTool",
    "Idempotency",
    "MemoryIdempotency",
    "MemoryRecords",
    "Progress",
    "Records",
    "Reload",
    "RetryPolicy",
    "SQLiteIdempotency",
    "SQLiteRecords",
    "Snapshot",
    "Tool",
    "ToolContext",
    "ToolExecutionRecord",
    "ToolOptions",
    "ToolRegistry",
    "tool",
]
