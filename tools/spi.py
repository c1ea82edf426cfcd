"""Names for other rooms and extensions; they are no promise."""

from .code.executor import CodeResult
from .code.program_calls import ProgramCall, is_nested_call
from .code.session_ends import SessionEnds, SQLiteSessionEnds
from .code.sessions import CodeSession, CodeSessions, SessionEnd
from .code.synchronous import SyncCodeExecutor
from .conformance import check_checkpointer, check_model, check_tool
from .definition.context import ArtifactSink, Progress
from .definition.options import ToolOptions
from .definition.questions import AskUser, UserAnswer, UserQuestion
from .execution.components import first_facts
from .execution.executor import Call
from .execution.mcp_acts import MCP_ACTS, MCPActs
from .execution.operation import NO_COST
from .execution.result_stream import ResultStream
from .execution.runner import max_cpu_ms
from .execution.user_questions import USER_ASK
from .external.definition import ExternalDefinition, model_description
from .external.kept_tokens import KeptTokens
from .external.login import OAuthLogin
from .external.person_login import log_in
from .external.pins import PinChange
from .hooks.hook import CallCancelledError, Invocation, Proceed
from .hooks.result_size import FolderResultStore
from .hooks.watcher import CallStage, CallWatch
from .mcp_client.definition import MCPDefinition, MCPPins
from .mcp_client.http import MCPEndpoint
from .mcp_client.offers import MCPOffer
from .openapi.definition import OpenAPIDefinition, OpenAPIPins
from .registry.registry import Reload
from .registry.snapshot import Snapshot, Visible
from .stores.memory_idempotency import MemoryIdempotency
from .stores.record import NumberedRecord
from .stores.record_filter import has_words, words_in
from .stores.records import MemoryRecords, ObservedRecords, UsageHour

__all__ = [
    "ArtifactSink",
    "AskUser",
    "Call",
    "CallCancelledError",
    "CallStage",
    "CallWatch",
    "CodeResult",
    "CodeSession",
    "CodeSessions",
    "ExternalDefinition",
    "FolderResultStore",
    "Invocation",
    "KeptTokens",
    "MCPActs",
    "MCPDefinition",
    "MCPEndpoint",
    "MCPOffer",
    "MCPPins",
    "MCP_ACTS",
    "MemoryIdempotency",
    "MemoryRecords",
    "NO_COST",
    "NumberedRecord",
    "OAuthLogin",
    "ObservedRecords",
    "OpenAPIDefinition",
    "OpenAPIPins",
    "PinChange",
    "Proceed",
    "ProgramCall",
    "Progress",
    "Reload",
    "ResultStream",
    "SQLiteSessionEnds",
    "SessionEnd",
    "SessionEnds",
    "Snapshot",
    "SyncCodeExecutor",
    "ToolOptions",
    "USER_ASK",
    "UsageHour",
    "UserAnswer",
    "UserQuestion",
    "Visible",
    "check_checkpointer",
    "check_model",
    "check_tool",
    "first_facts",
    "has_words",
    "is_nested_call",
    "log_in",
    "max_cpu_ms",
    "model_description",
    "words_in",
]
