"""What an approver is shown of a call: all of it, or how much is hidden and where."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from ..audit.redaction import Redactor, is_secret_name

_DIGEST_FROM = 20
"""Characters from which a part has a digest: that of a short secret can be guessed."""


@dataclass(frozen=True, slots=True)
class HiddenPart:
    """A part of the arguments that looks like a secret."""

    path: str
    """Where, as `edits.0.text`; a place in a text as `text[12:340]`."""

    characters: int
    """Its length; of what is no text, that of its JSON."""

    sha256: str | None
    """How the SHA-256 of its UTF-8 begins. None: it is shorter than 20 characters."""

    def __str__(self) -> str:
        digest = "" if self.sha256 is None else f", sha256 {self.sha256}"
        return f"[hidden: {self.characters} characters{digest}]"


class ApproverView:
    """A JSON value with what looks like a secret hidden, and nothing cut.

    Args:
        value: The arguments of a call.
        redactor: Says what looks like a secret.

    Attributes:
        shown: The value, a `HiddenPart` as text in the place of each secret.
        hidden: What is not shown.
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
            while label in shown:
                label += "'"
            secret = is_secret_name(name) or (tells and name == "value")
            at = f"{path}.{label}".removeprefix(".")
            hide = secret and value not in (None, "", [], {})
            shown[label] = self._hide(value, at) if hide else self._value(value, at)
        return shown

    def _text(self, text: str, path: str) -> str:
        shown, at = "", 0
        for start, end in self._redactor.secrets_in(text):
            part = _part(f"{path}[{start}:{end}]", text[start:end])
            self._found.append(part)
            shown += f"{text[at:start]}{part}"
            at = end
        return shown + text[at:]

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
