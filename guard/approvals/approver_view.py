"""The arguments of a call as an approver sees them, with secrets hidden."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from ..audit.redaction import Redactor, is_secret_name

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


class ApproverView:
    """A JSON value whose likely secrets are hidden, and of which nothing is cut.

    Args:
        value: The arguments of a call.
        redactor: Finds the secrets.

    Attributes:
        shown: The value, with a `HiddenPart` as text in the place of each secret.
        hidden: The parts that are not shown.
    """

    def __init__(self, value: JsonValue, redactor: Redactor) -> None:
        self._redactor = redactor
        self._found: list[HiddenPart] = []
        self.shown = self._value(value, "")
        self.hidden = tuple(self._found)

    def _value(self, value: JsonValue, path: str) -> JsonValue:
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, dict):
            return self._object(value, path)
        if isinstance(value, list):
            pair = len(value) == 2 and isinstance(value[0], str)
            secret = pair and is_secret_name(str(value[0]))
            return [
                self._hide(each, f"{path}.{place}")
                if secret and place
                else self._value(each, f"{path}.{place}")
                for place, each in enumerate(value)
            ]
        return value

    def _object(self, values: dict[str, JsonValue], path: str) -> dict[str, JsonValue]:
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
            self._found.append(part)
            shown += [text[at:start], str(part)]
            at = end
        return "".join([*shown, text[at:]])

    def _hide(self, value: JsonValue, path: str) -> str:
        part = _part(path, value if isinstance(value, str) else json.dumps(value))
        self._found.append(part)
        return str(part)


def _part(path: str, text: str) -> HiddenPart:
    data = text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).hexdigest()[:12]
    known = digest if len(text) >= _DIGEST_FROM else None
    return HiddenPart(path, len(text), known)


def hidden_as_json(parts: tuple[HiddenPart, ...]) -> list[dict[str, Any]]:
    """Return hidden parts as JSON values, without their digests, for a record."""
    return [{"path": each.path, "characters": each.characters} for each in parts]
