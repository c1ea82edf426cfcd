"""Tools, their registry, and the executors that call them."""

from .code.executor import CodeExecutor
from .code.synchronous import open_code_executor
from .definition.context import ToolContext
from .definition.json_schema_tool import JSONSchemaTool
from .definition.tool import FunctionTool, Tool, tool
from .definition.validation import Arguments
from .execution.components import RunContext
from .execution.executor import ConcurrentExecutor, SequentialExecutor, ToolExecutor
from .execution.failure_policies import CircuitBreaker, RetryPolicy
from .execution.operation import Operation
from .export.providers import to_anthropic, to_mcp, to_openai
from .hooks.cache import CacheHook
from .hooks.hook import Hook
from .hooks.logging import LoggingHook
from .hooks.redaction import RedactionHook
from .hooks.result_size import ResultSizeHook
from .hooks.watcher import CallWatcher
from .mcp_client.command import MCPCommand
from .mcp_client.toolset import MCPToolset
from .openapi.toolset import OpenAPIToolset
from .registry.registry import ToolRegistry
from .stores.idempotency import Idempotency
from .stores.record import ToolExecutionRecord
from .stores.records import Records
from .stores.sqlite_idempotency import SQLiteIdempotency
from .stores.sqlite_records import SQLiteRecords

__all__ = [
    "Arguments",
    "CacheHook",
    "CallWatcher",
    "CircuitBreaker",
    "CodeExecutor",
    "ConcurrentExecutor",
    "FunctionTool",
    "Hook",
    "Idempotency",
    "JSONSchemaTool",
    "LoggingHook",
    "MCPCommand",
    "MCPToolset",
    "OpenAPIToolset",
    "Operation",
    "Records",
    "RedactionHook",
    "ResultSizeHook",
    "RetryPolicy",
    "RunContext",
    "SQLiteIdempotency",
    "SQLiteRecords",
    "SequentialExecutor",
    "Tool",
    "ToolContext",
    "ToolExecutionRecord",
    "ToolExecutor",
    "ToolRegistry",
    "open_code_executor",
    "to_anthropic",
    "to_mcp",
    "to_openai",
    "tool",
]
