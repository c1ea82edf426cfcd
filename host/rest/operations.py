"""The operations of the REST API, as the OpenAPI document lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, Json, RootModel, create_model

from ..operator.events import EVENTS
from . import bodies
from .bodies import Body, NoQuery, WaitQuery

STREAM_OPENED = "stream.opened"


class StreamOpened(Body):
    """The first event of each stream."""

    complete: bool
    """False: events since `Last-Event-ID` are missing. Read everything anew."""


class _Message(Body):
    """The base of models without source: a search for docstrings takes 10 ms each."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def _message(kind: str, facts: type[BaseModel]) -> Any:
    fields: dict[str, Any] = {
        "id": (str, Field(description="The value for `Last-Event-ID`.")),
        "event": (Literal[kind], ...),
        "data": (Json[facts], ...),  # type: ignore[misc, valid-type]
    }
    return create_model(
        f"{facts.__name__}Message", __base__=_Message, __doc__=facts.__doc__, **fields
    )


_KINDS: Mapping[str, type[BaseModel]] = {STREAM_OPENED: StreamOpened, **EVENTS}
_TYPES = tuple(_message(kind, facts) for kind, facts in _KINDS.items())


class StreamedEvent(
    RootModel[Annotated[Union[_TYPES], Field(discriminator="event")]]  # type: ignore[valid-type]  # noqa: UP007
):
    """One server-sent event; `data` is a JSON object."""


Name = Literal[
    "listTools",
    "makeCall",
    "getCall",
    "cancelCall",
    "listApprovals",
    "getApproval",
    "approve",
    "deny",
    "listLiveCalls",
    "cancelLiveCall",
    "listSessions",
    "getBudgets",
    "listAgents",
    "listRecords",
    "readEvents",
]

_ALWAYS = (401, 422, 429, 500, 503)
_WITH_BODY = (400, 408, 413, 415)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: a method of a path."""

    name: Name
    method: Literal["GET", "POST"]
    path: str
    summary: str
    answers: Mapping[int, type[BaseModel]]
    """The body of each status of success."""

    streams: bool = False
    """True if the answer is a stream of such bodies, as server-sent events."""

    ends: bool = False
    """True if it ends what the agent has begun: it does not wait behind its calls."""

    query: type[Body] = NoQuery
    body: type[Body] | None = None
    refused: tuple[int, ...] = ()
    """Statuses of refusals beside those that every operation has."""

    @property
    def refusals(self) -> tuple[int, ...]:
        """All statuses of refusals."""
        with_body = () if self.body is None else _WITH_BODY
        return tuple(sorted({*self.refused, *with_body, *_ALWAYS}))


OPERATIONS = (
    Operation(
        name="listTools",
        method="GET",
        path="/v1/tools",
        summary="The tools that the agent may see.",
        answers={200: bodies.ToolList},
    ),
    Operation(
        name="makeCall",
        method="POST",
        path="/v1/calls",
        summary="Make a call. 200: it ended; 202: it runs, or waits for a person. "
        "A failed or refused call is a result, not an error.",
        query=WaitQuery,
        body=bodies.NewCall,
        answers={200: bodies.CallState, 202: bodies.CallState},
        refused=(409,),
    ),
    Operation(
        name="getCall",
        method="GET",
        path="/v1/calls/{id}",
        summary="A call of this agent, after its end or the wait.",
        query=WaitQuery,
        answers={200: bodies.CallState, 202: bodies.CallState},
        refused=(404,),
    ),
    Operation(
        name="cancelCall",
        method="POST",
        path="/v1/calls/{id}/cancel",
        summary="End a call now; one that has ended stays as it is.",
        ends=True,
        answers={200: bodies.CallState},
        refused=(404,),
    ),
    Operation(
        name="listApprovals",
        method="GET",
        path="/v1/approvals",
        summary="The calls of this agent that wait for a person.",
        answers={200: bodies.ApprovalList},
    ),
    Operation(
        name="getApproval",
        method="GET",
        path="/v1/approvals/{id}",
        summary="A call of this agent that waits for a person.",
        answers={200: bodies.Approval},
        refused=(404,),
    ),
    Operation(
        name="approve",
        method="POST",
        path="/v1/approvals/{id}/approve",
        summary="Let a call run, once, as it was shown. For tokens with a person.",
        body=bodies.Approve,
        answers={200: bodies.ApprovalAnswer},
        refused=(403, 404, 409),
    ),
    Operation(
        name="deny",
        method="POST",
        path="/v1/approvals/{id}/deny",
        summary="Refuse a call. For tokens with a person.",
        body=bodies.Deny,
        answers={200: bodies.ApprovalAnswer},
        refused=(403, 404, 409),
    ),
    Operation(
        name="listLiveCalls",
        method="GET",
        path="/v1/live",
        summary="The calls of this agent that wait or run now, of every server of this "
        "host.",
        query=bodies.AgentsQuery,
        answers={200: bodies.LiveCallList},
        refused=(403,),
    ),
    Operation(
        name="cancelLiveCall",
        method="POST",
        path="/v1/live/{id}/cancel",
        summary="End a call of any agent now, by its number. For operators.",
        ends=True,
        answers={200: bodies.CancelledCall},
        refused=(403, 404, 409),
    ),
    Operation(
        name="listSessions",
        method="GET",
        path="/v1/sessions",
        summary="The sessions of code of this agent that are open, with what they use.",
        query=bodies.AgentsQuery,
        answers={200: bodies.SessionList},
        refused=(403,),
    ),
    Operation(
        name="getBudgets",
        method="GET",
        path="/v1/budgets",
        summary="The rates and budgets of this agent, and what they leave now.",
        query=bodies.AgentQuery,
        answers={200: bodies.Budgets},
        refused=(403,),
    ),
    Operation(
        name="listAgents",
        method="GET",
        path="/v1/agents",
        summary="All agents with their rates and budgets. For operators.",
        answers={200: bodies.AgentList},
        refused=(403,),
    ),
    Operation(
        name="listRecords",
        method="GET",
        path="/v1/records",
        summary="Records of this agent's calls, of every process that shares them.",
        query=bodies.RecordQuery,
        answers={200: bodies.RecordList},
        refused=(403,),
    ),
    Operation(
        name="readEvents",
        method="GET",
        path="/v1/events",
        summary="Server-sent events of this agent. The header `Last-Event-ID` goes on "
        "where a stream ended; the first event, `stream.opened`, says if anything is "
        "missing. Operators read those of all agents, and of the host, with `agent=*`.",
        query=bodies.EventQuery,
        refused=(403,),
        answers={200: StreamedEvent},
        streams=True,
    ),
)
"""All operations; the document is served beside them, without a token."""
