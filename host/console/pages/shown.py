"""A request for approval as a page shows it: whole, with what it would do and cost."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import JsonValue

from toolcell.core import ToolcellError
from toolcell.core.event_loop import read_large
from toolcell.guard import ApprovalRequest, Decision, ShownRequest

from ...operator.explanations import explain
from ...runtime.sources import Sources
from ..web.templating import as_json, excerpt

MAX_LIST_CHARACTERS = 4_000
"""Characters of arguments in the list of all requests, to which each argument adds 100.
When it is reached they are on the request's own page alone, and so are its buttons."""

_ARGUMENT = 100

_MARK = re.compile(r"\[hidden: [^\[\]]{1,80}\]")


@dataclass(frozen=True, slots=True)
class ShownArgument:
    """One argument of a call."""

    name: str
    kind: str
    """Its type, for people: `text`, `number`, ..."""

    pieces: Sequence[tuple[str, bool]]
    """Its text in pieces; True marks what stands for a hidden part."""

    text: str
    """Its text, with the marks of hidden parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPage:
    """A request as it is shown, and what is known about it now."""

    request: ApprovalRequest
    arguments: Sequence[ShownArgument]
    as_json: str
    """All arguments as JSON in ASCII, in which no character looks like another one."""

    hidden: Sequence[str]
    """The marks of the parts that are hidden here."""

    opened: bool
    digest: str
    """`ShownRequest.digest`, which an approval has to name."""

    preview: str
    """The effect of the call in the words of its tool."""

    decision: Decision | None
    """The decision about the call now. None: this process does not know the tool."""

    problem: str
    """The reason why the call would fail, whoever approves it."""

    cost: Mapping[str, Any]
    """The most that the call may cost, by unit, as its tool declares."""

    is_long: bool
    """True if it is too long for a list."""

    excerpt: str
    """The begin of its arguments, which tells it from others."""

    is_plain: bool
    """True if every character of the arguments is of ASCII."""


async def show_request(
    sources: Sources,
    request: ApprovalRequest,
    *,
    opened: bool = False,
    edited: dict[str, JsonValue] | None = None,
) -> RequestPage:
    """Return a request as a page shows it; a large one is read beside the event loop.

    Args:
        sources: The host.
        request: The request.
        opened: True shows hidden parts. Default false.
        edited: Arguments of the approver to show in place of the call's.
    """
    shown = await ShownRequest.read(
        request, sources.approvals.redactor, opened=opened, edited=edited
    )
    now = await _now(sources, request, edited)
    read = partial(_page, shown, *now)
    return await read_large(request.call.agent_id or "", shown.arguments, read)


def _page(
    shown: ShownRequest,
    decision: Decision | None,
    problem: str,
    cost: Mapping[str, Any],
) -> RequestPage:
    hidden = [str(each) for each in shown.hidden]
    marks = frozenset(hidden)
    arguments = [_argument(*each, marks) for each in shown.arguments.items()]
    length = sum(
        _ARGUMENT + len(argument.name) + len(argument.text) for argument in arguments
    )
    return RequestPage(
        request=shown.request,
        arguments=arguments,
        as_json=as_json(shown.arguments, ascii_only=True),
        hidden=hidden,
        opened=shown.opened,
        digest=shown.digest,
        preview=shown.preview,
        decision=decision,
        problem=problem,
        cost=cost,
        is_long=length + len(shown.preview) > MAX_LIST_CHARACTERS,
        excerpt=excerpt({argument.name: argument.text for argument in arguments}),
        is_plain=all(argument.text.isascii() for argument in arguments),
    )


async def _now(
    sources: Sources, request: ApprovalRequest, edited: dict[str, JsonValue] | None
) -> tuple[Decision | None, str, Mapping[str, Any]]:
    """Return what would be decided about a call now, and what it may cost."""
    tool = sources.registry.snapshot().get(request.call.name)
    if tool is None:
        return None, "", {}
    if tool.definition_hash != request.definition_hash:
        return None, "the tool has changed since it was asked for", tool.cost
    call = request.call
    if edited is not None:
        call = call.model_copy(update={"arguments": edited})
    try:
        decision = await explain(
            sources.guard,
            sources.registry,
            call,
            run_id=request.run_id,
            seconds=sources.config.tools.timeout_seconds,
        )
    except ToolcellError as error:
        return None, str(error), tool.cost
    problem = decision.detail or decision.reason if decision.verdict == "deny" else ""
    return decision, problem, tool.cost


def _argument(name: str, value: JsonValue, marks: Collection[str]) -> ShownArgument:
    kind = _KINDS[type(value)]
    if not isinstance(value, str):
        text = as_json(value)
        return ShownArgument(name, kind, cut(text, marks), text)
    lines = value.count("\n") + 1
    kind = f"text, {lines} lines" if lines > 1 else kind
    return ShownArgument(
        name, kind if value else "empty text", cut(value, marks), value
    )


_KINDS = {
    str: "text",
    int: "number",
    float: "number",
    bool: "true or false",
    list: "list",
    dict: "object",
    type(None): "null",
}


def cut(text: str, marks: Collection[str]) -> Sequence[tuple[str, bool]]:
    """Cut a text at the marks of hidden parts."""
    pieces: list[tuple[str, bool]] = []
    at = 0
    for found in _MARK.finditer(text):
        if found[0] in marks:
            pieces += [(text[at : found.start()], False), (found[0], True)]
            at = found.end()
    return [*pieces, (text[at:], False)]
