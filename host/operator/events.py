"""The events of a host: one closed table of their types.

An event has ids and words only. What it is about is fetched, with the rights of whoever
reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import ConfigDict

from toolcell.core import ToolStatus
from toolcell.core.models import FrozenModel
from toolcell.tools.spi import SessionEnd


class Event(FrozenModel):
    """Something that happened in a host."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: ClassVar[str]
    """The type of the event, as streams name it."""

    agent: str | None
    """The agent that it is about, which reads it, too; null: operators alone do."""


class CallEvent(Event):
    """A call, of any server of the host, or made by a program."""

    id: str
    """Its id."""

    tool: str
    number: int
    """Its number in this process, for `/v1/live/{id}/cancel`."""

    parent: str | None
    """The call whose program makes this one."""


class CallQueued(CallEvent):
    """A call waits for a place: `tools.max_concurrency` others have theirs."""

    kind = "call.queued"


class CallStarted(CallEvent):
    """A call has a place, and is decided about."""

    kind = "call.started"


class CallParked(CallEvent):
    """A call waits for a person, and has lent its place."""

    kind = "call.parked"


class CallResumed(CallEvent):
    """A call has an answer of a person, and a place again."""

    kind = "call.resumed"


class CallEnded(CallEvent):
    """A call has a result; also one that was refused."""

    kind = "call.ended"
    status: ToolStatus


class ApprovalEvent(Event):
    """A request for approval, of any process with the same `state.folder`."""

    id: str
    """The id of the request."""

    tool: str


class ApprovalAsked(ApprovalEvent):
    """A call waits for a person, or was asked about to be made later."""

    kind = "approval.asked"


class ApprovalVoted(ApprovalEvent):
    """One of the several people who have to approve a request has done so."""

    kind = "approval.voted"


class ApprovalEnded(ApprovalEvent):
    """A request was answered, or waits no longer."""

    kind = "approval.ended"
    status: str
    """The answer, `expired`, or `ended` if nobody needs an answer any more."""


class SessionEvent(Event):
    """A session: of code, or a sandbox of the sandbox API."""

    number: int | None
    """Its number in this process, as in `/v1/sessions`; null: it is a sandbox."""

    session: str
    """The key that its client chose, or the id of a sandbox."""


class SessionOpened(SessionEvent):
    """A session has its cell."""

    kind = "session.opened"


class SessionPaused(SessionEvent):
    """No process of a sandbox runs until it goes on."""

    kind = "session.paused"


class SessionResumed(SessionEvent):
    """A sandbox that was paused goes on."""

    kind = "session.resumed"


class SessionClosed(SessionEvent):
    """A session has ended; its variables and files are gone."""

    kind = "session.closed"
    reason: SessionEnd


class CellEvent(Event):
    """A cell of this process; `agent` is that of the program, if it had one."""

    backend: str


class CellLost(CellEvent):
    """A cell ended by itself, or broke the protocol."""

    kind = "cell.lost"
    reason: Literal["run", "session", "ready"]
    """Its use when that was found: a single program, a session, or none yet."""


class CellDiscarded(CellEvent):
    """A cell that was kept for its agent's next program was destroyed instead."""

    kind = "cell.discarded"
    reason: Literal["not_clean", "not_renewed"]
    """The last program did not end cleanly; or the cell could not be made new."""


class CellUnavailable(CellEvent):
    """A cell could not be made; published once, until one can be made again."""

    kind = "cell.unavailable"
    reason: Literal["not_made", "not_started"]
    """The backend made none; or what it made did not get ready."""


class CellAvailable(CellEvent):
    """A cell could be made again."""

    kind = "cell.available"


class PolicyChanged(Event):
    """Other policies are in force."""

    kind = "policy.changed"
    version: str
    """Their version, as decisions name it."""


class StoreEvent(Event):
    """A store that calls need."""

    store: Literal["guard", "approvals"]
    """`guard`: the counters of limits. `approvals`: the requests of all processes."""


class StoreUnavailable(StoreEvent):
    """A store does not answer."""

    kind = "store.unavailable"


class StoreAvailable(StoreEvent):
    """A store that did not answer does so again."""

    kind = "store.available"


EVENTS: Mapping[str, type[Event]] = {
    each.kind: each
    for each in (
        CallQueued,
        CallStarted,
        CallParked,
        CallResumed,
        CallEnded,
        ApprovalAsked,
        ApprovalVoted,
        ApprovalEnded,
        SessionOpened,
        SessionPaused,
        SessionResumed,
        SessionClosed,
        CellLost,
        CellDiscarded,
        CellUnavailable,
        CellAvailable,
        PolicyChanged,
        StoreUnavailable,
        StoreAvailable,
    )
}
"""All types of events, by their names."""
