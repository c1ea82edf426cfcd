"""Tools, their registry, and the executors that call them."""

from .code.executor import CodeExecutor, CodeResult
from .code.program_calls import ProgramCall, is_nested_call
from .code.sessions import CodeSession, CodeSessions, SessionEnd
from .conformance import check_checkpointer, check_model, check_tool
from .definition.context import ArtifactSink, Progress, ToolContext
from .definition.function_tool import FunctionTool, tool
from .definition.json_schema_tool import JSONSchemaTool
from .definition.options import ToolOptions
from .definition.tool import Tool
from .definition.validation import Arguments
from .execution.components import RunContext
from .execution.executor import (
    Call,
    ConcurrentExecutor,
    SequentialExecutor,
    ToolExecutor,
)
from .execution.failure_policies import CircuitBreaker, RetryPolicy
from .execution.operation import Operation
from .execution.result_stream import ResultStream
from .export.providers import to_anthropic, to_mcp, to_openai
from .foreign.definition import ForeignDefinition
from .foreign.pins import PinChange
from .hooks.cache import CacheHook
from .hooks.hook import CallCancelledError, Hook, Invocation, Proceed
from .hooks.logging import LoggingHook
from .hooks.redaction import RedactionHook
from .hooks.result_size import FolderResultStore, ResultSizeHook
from .hooks.watcher import CallStage, CallWatch, CallWatcher
from .mcp_client.definition import MCPDefinition
from .mcp_client.http import MCPEndpoint
from .mcp_client.pins import MCPPins
from .mcp_client.stdio import MCPCommand
from .mcp_client.toolset import MCPToolset
from .openapi.definition import OpenAPIDefinition, OpenAPIPins
from .openapi.toolset import OpenAPIToolset
from .registry.registry import Reload, ToolRegistry
from .registry.snapshot import Snapshot, Visible
from .stores.idempotency import Idempotency, MemoryIdempotency
from .stores.observed_records import ObservedRecords
from .stores.records import (
    MemoryRecords,
    NumberedRecord,
    Records,
    ToolExecutionRecord,
    UsageHour,
)
from .stores.sqlite_idempotency import SQLiteIdempotency
from .stores.sqlite_records import SQLiteRecords

__all__ = [
    "Arguments",
    "ArtifactSink",
    "CacheHook",
    "Call",
    "CallCancelledError",
    "CallStage",
    "CallWatch",
    "CallWatcher",
    "CircuitBreaker",
    "CodeExecutor",
    "CodeResult",
    "CodeSession",
    "CodeSessions",
    "ConcurrentExecutor",
    "FolderResultStore",
    "ForeignDefinition",
    "FunctionTool",
    "Hook",
    "Idempotency",
    "Invocation",
    "JSONSchemaTool",
    "LoggingHook",
    "MCPCommand",
    "MCPDefinition",
    "MCPEndpoint",
    "MCPPins",
    "MCPToolset",
    "MemoryIdempotency",
    "MemoryRecords",
    "NumberedRecord",
    "ObservedRecords",
    "OpenAPIDefinition",
    "OpenAPIPins",
    "OpenAPIToolset",
    "Operation",
    "PinChange",
    "Proceed",
    "ProgramCall",
    "Progress",
    "Records",
    "RedactionHook",
    "Reload",
    "ResultSizeHook",
    "ResultStream",
    "RetryPolicy",
    "RunContext",
    "SQLiteIdempotency",
    "SQLiteRecords",
    "SequentialExecutor",
    "SessionEnd",
    "Snapshot",
    "Tool",
    "ToolContext",
    "ToolExecutionRecord",
    "ToolExecutor",
    "ToolOptions",
    "ToolRegistry",
    "UsageHour",
    "Visible",
    "check_checkpointer",
    "check_model",
    "check_tool",
    "is_nested_call",
    "to_anthropic",
    "to_mcp",
    "to_openai",
    "tool",
]
