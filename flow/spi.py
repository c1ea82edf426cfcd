"""Names for other rooms and extensions; they are no promise."""

from .conformance.suite import FLOW_CHECKPOINTER_CHECKS, check_flow_checkpointer
from .control.stream import EventStream
from .execution.history import CheckpointInfo, ThreadInfo
from .state.reducers import Reducer, apply_reducers, get_reducer
from .stored_threads import StoredThread
from .stores.adapter import adapt
from .stores.checkpointer import Checkpointer
from .values.command import End, is_command, normalize_node_output, resume_with
from .values.events import FlowEvent
from .values.interrupt import (
    GraphInterrupted,
    InterruptException,
    InterruptState,
    InterruptValue,
)
from .values.send import broadcast, is_send, is_send_list, normalize_sends
from .values.send_results import extract_send_results

__all__ = [
    "CheckpointInfo",
    "Checkpointer",
    "End",
    "EventStream",
    "FLOW_CHECKPOINTER_CHECKS",
    "FlowEvent",
    "GraphInterrupted",
    "InterruptException",
    "InterruptState",
    "InterruptValue",
    "Reducer",
    "StoredThread",
    "ThreadInfo",
    "adapt",
    "apply_reducers",
    "broadcast",
    "check_flow_checkpointer",
    "extract_send_results",
    "get_reducer",
    "is_command",
    "is_send",
    "is_send_list",
    "normalize_node_output",
    "normalize_sends",
    "resume_with",
]
