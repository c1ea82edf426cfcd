"""A request for approval as a page shows it: whole, with what it would do and cost."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from toolcell.core import ToolcellError
from toolcell.guard import ApprovalRequest, Decision, ShownRequest

from ...operator.explanations import explain
from ...runtime.sources import Sources
from ..web.templating import as_json, excerpt

MAX_LIST_CHARACTERS = 4_000
"""Characters of arguments in the list of all requests. When it is reached they are on
the request's own page alone, and so are its buttons."""


_MARK = re.compile(r"\[hidden: [^\[\]]{1,80}\]")


@dataclass(frozen=True, slots=True)
class ShownArgument:
    """One argument of a call."""

    name: str
    kind: str
    """Its type, for people: `text`, `number`, ..."""

    pieces: Sequence[tuple[str, bool]]
    """Its text in pieces; True marks what stands for a hidden part."""

    @property
    def text(self) -> str:
        """Its text, with the marks of hidden parts."""
        return "".join(text for text, _ in self.pieces)

    @property
    def characters(self) -> int:
        """The length of its text."""
        return sum(len(text) for text, _ in self.pieces)


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

    @property
    def is_long(self) -> bool:
        """True if it is too long for a list."""
        total = sum(each.characters for each in self.arguments) + len(self.preview)
        return total > MAX_LIST_CHARACTERS

    @property
    def excerpt(self) -> str:
        """The begin of its arguments, which tells it from others."""
        return excerpt({each.name: each.text for each in self.arguments})

    @property
    def is_plain(self) -> bool:
        """True if every character of the arguments is of ASCII."""
        texts = (text for each in self.arguments for text, _ in each.pieces)
        return all(map(str.isascii, texts))


async def show_request(
    sources: Sources,
    request: ApprovalRequest,
    *,
    opened: bool = False,
    edited: dict[str, JsonValue] | None = None,
) -> RequestPage:
    """Return a request as a page shows it.

    Args:
        sources: The host.
        request: The request.
        opened: True shows hidden parts. Default false.
        edited: Arguments of the approver to show in place of the call's.
    """
    shown = await ShownRequest.read(
        request, sources.approvals.redactor, opened=opened, edited=edited
    )
    hidden = [str(each) for each in shown.hidden]
    marks = frozenset(hidden)
    decision, problem, cost = await _now(sources, request, edited)
    return RequestPage(
        request=request,
        arguments=[_argument(*each, marks) for each in shown.arguments.items()],
        as_json=as_json(shown.arguments, ascii_only=True),
        hidden=hidden,
        opened=opened,
        digest=shown.digest,
        preview=shown.preview,
        decision=decision,
        problem=problem,
        cost=cost,
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
    if isinstance(value, str):
        lines = value.count("\n") + 1
        kind = f"text, {lines} lines" if lines > 1 else kind
        return ShownArgument(name, kind if value else "empty text", cut(value, marks))
    return ShownArgument(name, kind, cut(as_json(value), marks))


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
