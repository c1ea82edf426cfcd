"""Durable runs of tools: graphs whose threads pause for people and survive crashes."""

from .agent import agent_turn
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
from .stores.base import Checkpointer
from .stores.sqlite import MemoryCheckpointer, SQLiteCheckpointer
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
    "AutoApproveHandler",
    "CheckpointInfo",
    "Checkpointer",
    "Command",
    "Continue",
    "END",
    "End",
    "Flow",
    "FlowLimits",
    "FlowResult",
    "Graph",
    "GraphInterrupted",
    "InterruptException",
    "InterruptHandler",
    "InterruptState",
    "InterruptValue",
    "MemoryCheckpointer",
    "NodeContext",
    "REMOVE_ALL_MESSAGES",
    "Reducer",
    "SQLiteCheckpointer",
    "START",
    "Send",
    "SendBatch",
    "SendResult",
    "ThreadInfo",
    "add_messages",
    "add_numbers",
    "agent_turn",
    "aggregate_send_results",
    "append_list",
    "apply_reducers",
    "broadcast",
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
