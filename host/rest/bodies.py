"""Models of the requests and answers of the REST API; the OpenAPI document is theirs.

Times are seconds since 1970 (UTC), and amounts of money decimal text.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue

from toolcell.core import ErrorInfo, ToolResult, ToolStatus
from toolcell.core.models import FrozenModel
from toolcell.sandbox import Status

from ..operator.live_calls import CallState as State

MAX_WAIT_SECONDS = 60.0
"""Longest time in seconds that an answer may be waited for. A longer one is refused."""

DIGEST = r"^[0-9a-f]{64}$"
CALL_ID = r"^[A-Za-z0-9_-]{1,64}$"
"""The ids that clients may give to their calls."""

_Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Time = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]


class Body(FrozenModel):
    """A body, an answer, or the query of a request."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class NoQuery(Body):
    """The query of a request that takes none."""


class WaitQuery(Body):
    """The query of a request that waits for the end of a call."""

    wait: _Wait = 30.0
    """Seconds to wait for the end of the call. When it is reached the answer is the
    call as it is then, and the call goes on."""


class AgentQuery(Body):
    """The query of a request about an agent."""

    agent: _Name | None = None
    """Another agent than that of the token; for operators."""


class AgentsQuery(Body):
    """The query of a request about agents."""

    agent: _Name | None = None
    """Another agent than that of the token, or `*` for all of them; for operators."""


class RecordQuery(AgentsQuery):
    """The query for records; all that is named has to fit."""

    call_id: _Name | None = None
    """Only attempts at this call."""

    parent_id: _Name | None = None
    """Only calls made inside this one."""

    tool: _Name | None = None
    """Only calls of this tool."""

    status: ToolStatus | Status | Literal["failed"] | None = None
    """Only calls that ended like this, or whose program did where only that one failed:
    the `outcome` of a record. `failed`: all but `ok` and `denied`."""

    reason: _Name | None = None
    """Only calls that were refused for this reason."""

    text: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    """Only calls with all of these words in arguments, result or error."""

    since: _Time | None = None
    """Only calls that started then or later."""

    until: _Time | None = None
    """Only calls that started earlier."""

    before: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Only records with a lower `number`: `next` of the page before."""

    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    """The most records; the newest are returned."""


class EventQuery(AgentsQuery):
    """The query for events."""

    seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 3_600.0
    """Seconds that the stream lasts. When it is reached the stream ends, and a client
    goes on with a new one and `Last-Event-ID`. 0: what there is now."""


class NewCall(Body):
    """A call to make."""

    tool: _Name
    """The name of the tool."""

    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Its arguments, as the tool's `parameters` describe them."""

    id: Annotated[str, Field(pattern=CALL_ID)] | None = None
    """Your own id. The same call sent again under it is not made twice. Default:
    the server chooses one."""


class Approve(Body):
    """An approval of a call that waits."""

    digest: Annotated[str, Field(pattern=DIGEST)]
    """`digest` of the request as it was read: what was seen is what is approved."""

    arguments: dict[str, JsonValue] | None = None
    """Arguments to run it with instead; they go through the policy again."""


class Deny(Body):
    """A refusal of a call that waits."""

    reason: Annotated[str, Field(max_length=2_000)] = ""
    """The model reads it."""


class Tool(Body):
    """A tool that the agent may see."""

    name: str
    description: str
    version: str
    tags: list[str]
    parameters: dict[str, Any]
    """The JSON Schema of its arguments."""

    returns: dict[str, Any] | None
    """The JSON Schema of its result; null: unknown."""

    idempotent: bool
    """True if a second call with the same arguments changes nothing more."""


class ToolList(Body):
    """The tools that the agent may see."""

    tools: list[Tool]


class CallState(Body):
    """A call, running or ended."""

    id: str
    tool: str
    arguments: dict[str, JsonValue]
    state: State
    """`queued`: it waits for a place; `parked`: for a person."""

    started_at: float
    ended_at: float | None
    result: ToolResult | None
    """The result; a failed or refused call has one, too. Null while it runs."""


class LiveCall(Body):
    """A call that waits or runs; of every server of this host."""

    number: int
    """Its number in this process, for `/v1/live/{id}/cancel`."""

    call_id: str
    agent_id: str | None
    tool: str
    parent_id: str | None
    """The call whose program makes this one."""

    run_id: str | None
    session: str | None
    arguments: dict[str, JsonValue]
    """Its arguments, without secrets."""

    state: State
    """`queued`: it waits for a place; `parked`: for a person."""

    status: ToolStatus | None
    """The status of its result; null while it has none."""

    started_at: float
    deadline: float | None
    """The time at which its run is stopped, unless it waits for a person meanwhile.
    Null: it was not admitted yet, or has no such time."""

    can_be_ended: bool
    """False: it is an act of the sandbox API that ends by itself, or with its
    sandbox."""

    output_bytes: int
    """Bytes that its program has printed so far."""


class CancelledCall(LiveCall):
    """A call that an operator ended."""

    recorded: bool
    """False: the audit log could not be written; the host's own log has the act."""


class LiveCallList(Body):
    """Calls that wait or run now, the oldest first."""

    calls: list[LiveCall]


class SessionUsage(Body):
    """The resources that a session uses now."""

    cpu_ms: float
    """Milliseconds of CPU time of all that ran in it so far."""

    memory_bytes: int
    """Bytes of memory of its processes; files, which are in memory too, are not in."""

    disk_bytes: int
    """Bytes of files in its work dir."""


class SessionInfo(Body):
    """A session of code that is open."""

    number: int
    """Its number in this process."""

    agent_id: str | None
    session: str
    """The key that its client chose."""

    opened_at: float
    idle_seconds: float
    """Seconds since a call used it; 0 while one does."""

    calls: int
    """Calls that use it now."""

    programs: int
    """Python programs that were begun in it."""

    usage: SessionUsage | None
    """Null: it has no cell yet, or that did not answer within a second."""


class SessionList(Body):
    """Sessions of code that are open, the oldest first."""

    sessions: list[SessionInfo]


class HiddenPart(Body):
    """A part of arguments that looks like a secret."""

    path: str
    characters: int


class Approval(Body):
    """A call that waits for a person."""

    id: str
    tool: str
    version: str
    run_id: str | None
    arguments: dict[str, JsonValue]
    """The arguments whole; hidden parts are replaced by their lengths."""

    hidden: list[HiddenPart]
    """The parts that are not shown. A request that has some is answered elsewhere:
    nobody approves what was not seen."""

    preview: str
    """The effect of the call in the words of its tool, which nothing checks; likely
    secrets are hidden. Empty: the tool says nothing."""

    shell_like: bool
    """True if the tool may run its arguments as code."""

    rule: str
    """The rule of the policy that says to ask."""

    approvers: int
    """The people who have to approve it. If there are several, none of them does so
    here: the person at the agent's own client is not one of them."""

    approved_by: list[str]
    """Those of several who have approved it so far."""

    asked_at: float
    expires_at: float
    digest: str
    """A digest of what is shown, which an approval has to name."""


class ApprovalList(Body):
    """The calls of the agent that wait for a person, the oldest first."""

    approvals: list[Approval]


class ApprovalAnswer(Body):
    """An answer that was recorded."""

    id: str
    answer: Literal["approved", "rejected"]
    approver: str


class Limit(Body):
    """One rate or budget of an agent, as it is now."""

    name: str
    unit: str
    """Of its amounts: `calls`, `slots` for calls at once, or a unit of cost."""

    window: str
    """`hour`, `day`, `month`, `run`, `turn`, `total`, `open` for calls at once, or
    `rate`."""

    maximum: int | str
    used: int | str
    held: int | str
    """The amount that open calls have reserved."""

    left: int | str
    resets_at: float | None
    """The end of the period, and of a full rate the time of the next call. Null: time
    alone changes nothing, or there is room."""

    enforced: bool
    """False if it is on trial, and refuses nothing."""


class Budgets(Body):
    """The limits of an agent, and the amounts that they leave it now."""

    agent_id: str
    left: dict[str, int | str]
    """Amounts by limit."""

    limits: list[Limit]


class AgentList(Body):
    """The agents that have policies, with their limits."""

    agents: list[Budgets]


class Record(Body):
    """One attempt at one call. Secrets in it are redacted."""

    number: int
    """Grows from record to record."""

    call_id: str
    agent_id: str | None
    parent_id: str | None
    tool: str
    version: str | None
    arguments: dict[str, JsonValue]
    verdict: Literal["allowed", "denied", "unguarded", "not_asked"]
    status: Literal["ok", "error", "denied", "timeout", "cancelled"]
    outcome: ToolStatus | Status
    """The status; that of the program, where only that one failed."""

    reason: str | None
    """The reason of a refusal by the guard."""

    rule: str | None
    """The rule or limit that refused."""

    error_kind: str | None
    result: JsonValue
    usage: dict[str, int | str]
    started_at: float
    duration_ms: float
    attempt: int
    final: bool
    replayed: bool


class RecordList(Body):
    """Records, the oldest first."""

    records: list[Record]
    next: int | None
    """`before` of the next page, of older records; a page of 4 MiB ends before `limit`.
    Null: there is none."""


class Problem(Body):
    """The reason of a refusal, and advice."""

    error: ErrorInfo
