"""Threads as JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcell.flow import FlowResult
    from toolcell.flow.spi import CheckpointInfo, StoredThread, ThreadInfo
    from toolcell.guard import Redactor


def thread_summary(info: ThreadInfo) -> dict[str, Any]:
    """Return one line of a list of threads."""
    return {
        "thread": info.thread_id,
        "graph": info.graph,
        "status": info.status,
        "checkpoint": info.checkpoint_id,
        "updated": info.updated.isoformat(timespec="seconds"),
    }


def thread_facts(thread: StoredThread, redactor: Redactor) -> dict[str, Any]:
    """Return a thread; likely secrets are hidden."""
    facts: dict[str, Any] = {
        **thread_summary(thread.info),
        "agent": thread.agent,
        "step": thread.step,
        "next": list(thread.next_nodes),
        "state": redactor(thread.state),
        "questions": [question.to_display() for question in thread.questions],
        "journal": [
            {"task": record.task, "did": _words(record)} for record in thread.journal
        ],
    }
    if thread.info.metadata:
        facts["metadata"] = redactor(dict(thread.info.metadata))
    return facts


def _words(record: Any) -> str:
    """Return what a record of a journal says."""
    match record.type:
        case "begin":
            return f"began the call of {record.tool} at {record.op}"
        case "end":
            return f"ended {record.kind} {record.name} at {record.op}"
        case "redo":
            return f"does {', '.join(record.ops) or 'the task'} again"
        case "asked":
            return f"asked {record.interrupt.interrupt_id} at {record.op}"
        case "task":
            return f"is {record.status}"
        case other:
            return str(other)


def checkpoint_facts(info: CheckpointInfo) -> dict[str, Any]:
    """Return one checkpoint."""
    return {
        "checkpoint": info.checkpoint_id,
        "step": info.step,
        "at": info.at.isoformat(timespec="seconds"),
        "next": list(info.next_nodes),
        "changed": list(info.changed),
        "answers": [answer.model_dump(mode="json") for answer in info.answers],
    }


def result_facts(result: FlowResult[Any]) -> dict[str, Any]:
    """Return the result of a run; the state is as it is, secrets included."""
    return {
        "thread": result.thread_id,
        "status": result.status,
        "checkpoint": result.checkpoint_id,
        "state": result.state.model_dump(mode="json"),
        "questions": [interrupt.to_display() for interrupt in result.interrupts],
        "error": None if result.error is None else result.error.model_dump(mode="json"),
    }
