"""What agents can do: tools, their registry, and the executors that call them."""

from .circuit_breaker import CircuitBreaker
from .context import ArtifactSink, Progress, ToolContext
from .exporters import to_anthropic, to_mcp, to_openai
from .idempotency import Idempotency, MemoryIdempotency
from .json_schema_tool import JSONSchemaTool
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
    "JSONSchemaTool",
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
    "to_anthropic",
    "to_mcp",
    "to_openai",
    "tool",
]
