"""Durable runs of tools: graphs whose threads pause for people and survive crashes."""

from .agent import agent_turn
from .execution.result import FlowResult
from .flow import Flow
from .graph.graph import Graph
from .state.reducers import (
    REMOVE_ALL_MESSAGES,
    add_messages,
    add_numbers,
    append_list,
    deep_merge_dict,
    first_value,
    last_value,
    max_value,
    merge_dict,
    min_value,
    reducer,
    set_intersection,
    set_union,
    unique_append_list,
)
from .stored_threads import StoredThreads
from .stores.memory import MemoryCheckpointer
from .stores.redis import RedisCheckpointer
from .stores.sqlite import SQLiteCheckpointer
from .values.command import END, START, Command, Continue, end, goto
from .values.context import NodeContext
from .values.events import (
    Answered,
    CallEnded,
    Emitted,
    Ended,
    Interrupted,
    StepCommitted,
    StepStarted,
    TaskEnded,
    TaskStarted,
)
from .values.handlers import AutoApproveHandler, InterruptHandler
from .values.interrupt import interrupt
from .values.limits import FlowLimits
from .values.send import Send, SendBatch, SendResult, scatter, send
from .values.send_results import aggregate_send_results

__all__ = [
    "Answered",
    "AutoApproveHandler",
    "CallEnded",
    "Command",
    "Continue",
    "END",
    "Emitted",
    "Ended",
    "Flow",
    "FlowLimits",
    "FlowResult",
    "Graph",
    "InterruptHandler",
    "Interrupted",
    "MemoryCheckpointer",
    "NodeContext",
    "REMOVE_ALL_MESSAGES",
    "RedisCheckpointer",
    "SQLiteCheckpointer",
    "START",
    "Send",
    "SendBatch",
    "SendResult",
    "StepCommitted",
    "StepStarted",
    "StoredThreads",
    "TaskEnded",
    "TaskStarted",
    "add_messages",
    "add_numbers",
    "agent_turn",
    "aggregate_send_results",
    "append_list",
    "deep_merge_dict",
    "end",
    "first_value",
    "goto",
    "interrupt",
    "last_value",
    "max_value",
    "merge_dict",
    "min_value",
    "reducer",
    "scatter",
    "send",
    "set_intersection",
    "set_union",
    "unique_append_list",
]
