"""Durable runs of tools: graphs whose threads pause for people and survive crashes."""

from .agent import agent_turn
from .conformance.suite import FLOW_CHECKPOINTER_CHECKS, check_flow_checkpointer
from .control.stream import EventStream
from .execution.history import CheckpointInfo, ThreadInfo
from .execution.result import FlowResult
from .flow import Flow
from .graph.graph import Graph
from .state.reducers import (
    REMOVE_ALL_MESSAGES,
    Reducer,
    add_messages,
    add_numbers,
    append_list,
    apply_reducers,
    deep_merge_dict,
    first_value,
    get_reducer,
    last_value,
    max_value,
    merge_dict,
    min_value,
    reducer,
    set_intersection,
    set_union,
    unique_append_list,
)
from .stored_threads import StoredThread, StoredThreads
from .stores.adapter import adapt
from .stores.checkpointer import Checkpointer
from .stores.memory import MemoryCheckpointer
from .stores.redis import RedisCheckpointer
from .stores.sqlite import SQLiteCheckpointer
from .values.command import (
    END,
    START,
    Command,
    Continue,
    End,
    end,
    goto,
    is_command,
    normalize_node_output,
    resume_with,
)
from .values.context import NodeContext
from .values.events import (
    Answered,
    CallEnded,
    Emitted,
    Ended,
    FlowEvent,
    Interrupted,
    StepCommitted,
    StepStarted,
    TaskEnded,
    TaskStarted,
)
from .values.handlers import AutoApproveHandler, InterruptHandler
from .values.interrupt import (
    GraphInterrupted,
    InterruptException,
    InterruptState,
    InterruptValue,
    interrupt,
)
from .values.limits import FlowLimits
from .values.send import (
    Send,
    SendBatch,
    SendResult,
    broadcast,
    is_send,
    is_send_list,
    normalize_sends,
    scatter,
    send,
)
from .values.send_results import aggregate_send_results, extract_send_results

__all__ = [
    "Answered",
    "AutoApproveHandler",
    "CallEnded",
    "CheckpointInfo",
    "Checkpointer",
    "Command",
    "Continue",
    "END",
    "Emitted",
    "End",
    "Ended",
    "EventStream",
    "FLOW_CHECKPOINTER_CHECKS",
    "Flow",
    "FlowEvent",
    "FlowLimits",
    "FlowResult",
    "Graph",
    "GraphInterrupted",
    "InterruptException",
    "InterruptHandler",
    "InterruptState",
    "InterruptValue",
    "Interrupted",
    "MemoryCheckpointer",
    "NodeContext",
    "REMOVE_ALL_MESSAGES",
    "RedisCheckpointer",
    "Reducer",
    "SQLiteCheckpointer",
    "START",
    "Send",
    "SendBatch",
    "SendResult",
    "StepCommitted",
    "StepStarted",
    "StoredThread",
    "StoredThreads",
    "TaskEnded",
    "TaskStarted",
    "ThreadInfo",
    "adapt",
    "add_messages",
    "add_numbers",
    "agent_turn",
    "aggregate_send_results",
    "append_list",
    "apply_reducers",
    "broadcast",
    "check_flow_checkpointer",
    "deep_merge_dict",
    "end",
    "extract_send_results",
    "first_value",
    "get_reducer",
    "goto",
    "interrupt",
    "is_command",
    "is_send",
    "is_send_list",
    "last_value",
    "max_value",
    "merge_dict",
    "min_value",
    "normalize_node_output",
    "normalize_sends",
    "reducer",
    "resume_with",
    "scatter",
    "send",
    "set_intersection",
    "set_union",
    "unique_append_list",
]
