"""Stops a run that repeats itself."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from toolcell.core import ToolCall
from toolcell.core.text.canonical_json import canonical_json

from ..values.calls import CallFacts, Caps, Reason
from .hold import LoopEntry

_RECENT = 32
MAX_RUNS = 10_000
"""Runs that are watched at once in a process. When it is reached the run that has
been idle longest is forgotten."""


@dataclass(slots=True)
class _RunHistory:
    tool: str = ""
    in_a_row: int = 0
    since: list[LoopEntry] = field(default_factory=list)
    """The calls after that streak, from the first that is still pending."""

    recent: deque[tuple[bytes, int]] = field(
        default_factory=lambda: deque(maxlen=_RECENT)
    )


class LoopDetector:
    """The last calls and results of each run of this process.

    It counts a call before the call is decided, so that calls made at once cannot all
    pass, and takes it back if the call is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[str | None, str | None], _RunHistory] = (
            OrderedDict()
        )

    def peek(self, caps: Caps, call: ToolCall, facts: CallFacts) -> Reason | None:
        """Return the reason to refuse a call; None if there is none."""
        with self._lock:
            return _loop_reason(self._run(call, facts), caps, call)

    def enter(self, caps: Caps, call: ToolCall, facts: CallFacts) -> Reason | LoopEntry:
        """Count a call, or return the reason to refuse it.

        Returns:
            The entry of a call that may go on; `take_back` removes it.
        """
        with self._lock:
            run = self._run(call, facts)
            reason = _loop_reason(run, caps, call)
            if reason is not None:
                return reason
            entry = LoopEntry(call.name)
            run.since.append(entry)
            return entry

    def take_back(self, call: ToolCall, facts: CallFacts, entry: LoopEntry) -> None:
        """Take back a call that was counted and then refused."""
        with self._lock:
            since = self._run(call, facts).since
            if entry in since:
                since.remove(entry)

    def record_result(self, call: ToolCall, facts: CallFacts, result: object) -> None:
        """Remember the result of a call."""
        with self._lock:
            self._run(call, facts).recent.append((_call_key(call), hash(repr(result))))

    def forget(self, agent_id: str) -> None:
        """Forget an agent's runs."""
        with self._lock:
            for name in [name for name in self._runs if name[0] == agent_id]:
                del self._runs[name]

    def _run(self, call: ToolCall, facts: CallFacts) -> _RunHistory:
        name = (call.agent_id, facts.run_id)
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _RunHistory()
            if len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)
        else:
            self._runs.move_to_end(name)
        return run


def _loop_reason(run: _RunHistory, caps: Caps, call: ToolCall) -> Reason | None:
    in_a_row = _consecutive(run, call.name)
    if caps.consecutive is not None and in_a_row >= caps.consecutive:
        return "consecutive"
    if (
        caps.identical is not None
        and _max_repeats(run, _call_key(call)) >= caps.identical
    ):
        return "repeated"
    return None


def _consecutive(run: _RunHistory, tool: str) -> int:
    """Return how many consecutive calls of a tool there may have been.

    A pending call counts towards consecutive calls of its own tool, but does not yet
    end another tool's streak.
    """
    since = run.since
    while since and since[0].admitted:
        first = since.pop(0).tool
        run.in_a_row = run.in_a_row + 1 if run.tool == first else 1
        run.tool = first
    count = run.in_a_row if run.tool == tool else 0
    for entry in since:
        if entry.tool == tool:
            count += 1
        elif entry.admitted:
            count = 0
    return count


def _call_key(call: ToolCall) -> bytes:
    return canonical_json([call.name, call.arguments])


def _max_repeats(run: _RunHistory, key: bytes) -> int:
    """Return how often a call gave its most frequent result."""
    results = [result for call, result in run.recent if call == key]
    return max(map(results.count, results), default=0)
