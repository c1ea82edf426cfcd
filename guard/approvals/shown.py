"""A request for approval as a person sees it, and the check that it was seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pydantic import JsonValue

from toolcell.core import InvalidInputError
from toolcell.core.event_loop import read_large
from toolcell.core.text.canonical_json import canonical_digest
from toolcell.core.text.counted import counted

from ..audit.redaction import Redactor, is_secret_name
from .types import ApprovalRequest, Approve

_DIGEST_FROM = 20
"""Shortest part, in characters, that has a digest: a short secret could be guessed."""


@dataclass(frozen=True, slots=True)
class HiddenPart:
    """A part of the arguments that looks like a secret."""

    path: str
    """Its path, as `edits.0.text`; for a part of a text as `text[12:340]`."""

    characters: int
    """Its length in characters; the length of its JSON if it is not text."""

    sha256: str | None
    """First digits of the SHA-256 of its UTF-8; None below 20 characters."""

    def __str__(self) -> str:
        digest = "" if self.sha256 is None else f", sha256 {self.sha256}"
        return f"[hidden: {self.characters} characters{digest}]"


class ShownRequest:
    """A request as a person sees it: all that counts, with likely secrets hidden.

    Nothing is cut. `digest` names what is shown: an approval that names it is of this
    request, shown like this.

    Args:
        request: The request.
        redactor: Finds the secrets; default `Redactor()`.
        opened: True hides nothing. Default false.
        edited: Arguments of the approver's own to show in place of the call's.

    Attributes:
        request: The request.
        opened: True if nothing is hidden because it was opened.
        arguments: The arguments, with a `HiddenPart` as text in the place of a secret.
        hidden: The parts of the arguments that are not shown.
        preview: The effect of the call in the words of its tool.
    """

    def __init__(
        self,
        request: ApprovalRequest,
        redactor: Redactor | None = None,
        *,
        opened: bool = False,
        edited: dict[str, JsonValue] | None = None,
    ) -> None:
        self._redact = redactor or Redactor()
        self.request, self.opened, self._is_edited = request, opened, edited is not None
        self.arguments = request.call.arguments if edited is None else edited
        self.preview = request.preview if edited is None else ""
        self.hidden: Sequence[HiddenPart] = ()
        if not opened:
            self.preview = str(self._redact(self.preview))
        if not opened and edited is None:
            view = _View(self._redact)
            self.arguments = view.object(request.call.arguments, "")
            self.hidden = tuple(view.found)

    @classmethod
    async def read(
        cls,
        request: ApprovalRequest,
        redactor: Redactor | None = None,
        *,
        opened: bool = False,
        edited: dict[str, JsonValue] | None = None,
    ) -> ShownRequest:
        """Return a request as it is shown; a large one is read beside the event loop.

        To look for secrets in a megabyte takes up to two seconds.
        """

        def read() -> ShownRequest:
            shown = cls(request, redactor, opened=opened, edited=edited)
            _ = shown.digest  # It is known from then on.
            return shown

        value = [request.call.arguments, edited]
        return await read_large(request.call.agent_id or "", value, read)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all that is shown and counts."""
        request = self.request
        return canonical_digest(
            {
                "id": request.id,
                # Of the hidden parts of a closed one it must tell nothing.
                "bound_to": request.digest if self.opened else None,
                "agent": request.call.agent_id,
                "run": request.run_id,
                "tool": [request.call.name, request.version, request.definition_hash],
                "arguments": self.arguments,
                "preview": self.preview,
                "edited": self._is_edited,
                "calls": request.calls,
                "tags": sorted(request.tags),
                "rule": request.rule,
                "approvers": request.approvers,
                "expires_at": request.expires_at,
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        request = self.request
        return {
            "id": request.id,
            "agent_id": request.call.agent_id,
            "run_id": request.run_id,
            "tool": request.call.name,
            "version": request.version,
            "arguments": self.arguments,
            "preview": self.preview,
            "hidden": hidden_as_json(self.hidden),
            "shell_like": request.shell_like,
            "rule": request.rule,
            "approvers": request.approvers,
            "approved_by": [*request.approved_by],
            "asked_at": request.asked_at,
            "expires_at": request.expires_at,
            "digest": self.digest,
        }

    def to_text(self) -> str:
        """Return lines for a person: nothing in them can act on a terminal."""
        request = self.request
        expires = datetime.fromtimestamp(int(request.expires_at), UTC)
        lines = {
            "request": request.id,
            "agent": request.call.agent_id,
            "run": request.run_id,
            "tool": f"{request.call.name} {request.version}".rstrip(),
            "arguments": None,
            "rule": request.rule,
            "expires": f"{expires:%Y-%m-%d %H:%M:%S} UTC",
        }
        shown = {name: self._redact(value) for name, value in lines.items()}
        shown["arguments"] = self.arguments
        if request.calls != 1:
            shown["calls"] = request.calls
        if request.approvers != 1:
            shown["approvers"] = request.approvers
            shown["approved by"] = [*request.approved_by]
        if self.hidden:
            parts = ", ".join(f"{part.path} {part}" for part in self.hidden)
            count = counted(len(self.hidden), "part")
            shown["hidden"] = f"{count}, to be opened first: {parts}"
        shown["seen"] = self.digest
        text = [f"{name}: {_safe(value)}" for name, value in shown.items()]
        if self.preview:
            text.append("preview, in the tool's own words:")
            # No line of it can look like one of the others.
            text += [f"  | {_safe(line)}" for line in self.preview.splitlines()]
        return "\n".join(text)


def check_seen(request: ApprovalRequest, reply: Approve, redactor: Redactor) -> None:
    """Check that an approval is of the request as it was shown, and shown whole.

    Args:
        request: The request.
        reply: The approval. One that names nothing is of a program that has the request
            itself; hidden parts it has not opened all the same.
        redactor: Finds the secrets.

    Raises:
        InvalidInputError: It names something else, or hidden parts were not opened;
            `reason` in the details is `not_as_shown` or `hidden_parts`.
    """
    closed = ShownRequest(request, redactor)
    opened = ShownRequest(request, redactor, opened=True).digest
    known = [None, closed.digest, opened]
    if reply.arguments is not None:
        known.append(ShownRequest(request, redactor, edited=reply.arguments).digest)
    if reply.seen not in known:
        raise InvalidInputError(
            "this is not the request that you saw",
            hint="look at it again, and answer what you see",
            details={"reason": "not_as_shown"},
        )
    if closed.hidden and reply.arguments is None and reply.seen != opened:
        raise InvalidInputError(
            f"the request has {counted(len(closed.hidden), 'hidden part')}",
            hint="open them first: in the console, or with "
            f"`toolcell approvals show {request.id} --reveal`",
            details={"reason": "hidden_parts"},
        )


class _View:
    """JSON values whose likely secrets are hidden, and of which nothing is cut."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.found: list[HiddenPart] = []

    def _value(self, value: JsonValue, path: str) -> JsonValue:
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, dict):
            return self.object(value, path)
        if isinstance(value, list):
            pair = len(value) == 2 and isinstance(value[0], str)
            secret = pair and is_secret_name(str(value[0]))
            return [
                self._hide(item, f"{path}.{place}")
                if secret and place
                else self._value(item, f"{path}.{place}")
                for place, item in enumerate(value)
            ]
        return value

    def object(self, values: dict[str, JsonValue], path: str) -> dict[str, JsonValue]:
        """Return an object with its secrets hidden."""
        named = values.get("name", values.get("key"))
        tells = isinstance(named, str) and is_secret_name(named)
        shown: dict[str, JsonValue] = {}
        for name, value in values.items():
            label = self._text(name, f"{path}.(a name)")
            if label in shown:
                label = f"{label}'{len(shown)}"
            secret = is_secret_name(name) or (tells and name == "value")
            at = f"{path}.{label}".removeprefix(".")
            hide = secret and value not in (None, "", [], {})
            shown[label] = self._hide(value, at) if hide else self._value(value, at)
        return shown

    def _text(self, text: str, path: str) -> str:
        shown: list[str] = []
        at = 0
        for start, end in self._redactor.secrets_in(text):
            part = _part(f"{path}[{start}:{end}]", text[start:end])
            self.found.append(part)
            shown += [text[at:start], str(part)]
            at = end
        return "".join([*shown, text[at:]])

    def _hide(self, value: JsonValue, path: str) -> str:
        part = _part(path, value if isinstance(value, str) else json.dumps(value))
        self.found.append(part)
        return str(part)


def _part(path: str, text: str) -> HiddenPart:
    data = text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).hexdigest()[:12]
    known = digest if len(text) >= _DIGEST_FROM else None
    return HiddenPart(path, len(text), known)


def hidden_as_json(parts: Sequence[HiddenPart]) -> list[dict[str, Any]]:
    """Return hidden parts as JSON values, without their digests, for a record."""
    return [{"path": part.path, "characters": part.characters} for part in parts]


def _safe(value: JsonValue) -> str:
    """Return text in printable ASCII.

    Letters of other alphabets that look alike could make one path look like another,
    so what a person approves is stricter than `core.text.printable.escaped`.
    """
    if not isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return value if value.isprintable() and value.isascii() else json.dumps(value)
