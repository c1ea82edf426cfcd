"""What agents can do: tools, their registry, and the executors that call them."""

from .attempt import RunContext
from .circuit_breaker import CircuitBreaker
from .code_calls import MadeCall, inside_program
from .code_executor import CodeExecutor, CodeResult
from .code_sessions import CodeSession, CodeSessions
from .conformance import check_checkpointer, check_model, check_tool
from .context import ArtifactSink, Progress, ToolContext
from .executor import ConcurrentExecutor, SequentialExecutor, ToolExecutor
from .exporters import to_anthropic, to_mcp, to_openai
from .hook_cache import CacheHook
from .hook_logging import LoggingHook
from .hook_redaction import RedactionHook
from .hook_result_size import FolderResultStore, ResultSizeHook
from .hooks import Hook, Invocation, Proceed
from .idempotency import Idempotency, MemoryIdempotency
from .json_schema_tool import JSONSchemaTool
from .mcp_client import MCPToolset
from .mcp_definition import MCPDefinition
from .mcp_http import MCPEndpoint
from .mcp_pins import MCPChange, MCPPins
from .mcp_stdio import MCPCommand
from .observed_records import ObservedRecords
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
    "CacheHook",
    "CircuitBreaker",
    "CodeExecutor",
    "CodeResult",
    "CodeSession",
    "CodeSessions",
    "ConcurrentExecutor",
    "FolderResultStore",
    "FunctionTool",
    "Hook",
    "Idempotency",
    "Invocation",
    "JSONSchemaTool",
    "LoggingHook",
    "MCPChange",
    "MCPCommand",
    "MCPDefinition",
    "MCPEndpoint",
    "MCPPins",
    "MCPToolset",
    "MadeCall",
    "MemoryIdempotency",
    "MemoryRecords",
    "ObservedRecords",
    "Proceed",
    "Progress",
    "Records",
    "RedactionHook",
    "Reload",
    "ResultSizeHook",
    "RetryPolicy",
    "RunContext",
    "SQLiteIdempotency",
    "SQLiteRecords",
    "SequentialExecutor",
    "Snapshot",
    "Tool",
    "ToolContext",
    "ToolExecutionRecord",
    "ToolExecutor",
    "ToolOptions",
    "ToolRegistry",
    "check_checkpointer",
    "check_model",
    "check_tool",
    "inside_program",
    "to_anthropic",
    "to_mcp",
    "to_openai",
    "tool",
]
