"""Answers of an API, as the content of results."""

from __future__ import annotations

import base64
import http.client
import re
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from toolcell.core import ToolExecutionError
from toolcell.core.http_exchange import read_body
from toolcell.core.text.charsets import decoded
from toolcell.core.text.json_size import count_values
from toolcell.core.text.printable import escaped
from toolcell.core.text.strict_json import read_json

from ..definition.context import ToolContext
from .credentials import Credentials

MAX_ERROR_CHARACTERS = 4_096
"""Length of an error's text. When it is reached the text is cut."""

MAX_ANSWER_VALUES = 100_000
"""Values of an answer in JSON. When it is reached the call fails."""

_MEDIA_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}", re.ASCII)
_TEXT = ("json", "xml", "javascript", "x-www-form-urlencoded", "yaml")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it came."""

    status: int
    media_type: str
    charset: str
    body: bytes
    retry_after: str
    is_packed: bool


def read_answer(response: http.client.HTTPResponse, max_bytes: int) -> Answer:
    """Read an answer, at most one byte more than `max_bytes`."""
    kind = response.headers.get_content_type()
    return Answer(
        status=response.status,
        media_type=kind if _MEDIA_TYPE.fullmatch(kind) else "application/octet-stream",
        charset=response.headers.get_content_charset() or "utf-8",
        body=read_body(response, max_bytes),
        retry_after=response.getheader("Retry-After", ""),
        is_packed=response.getheader("Content-Encoding", "identity") != "identity",
    )


def content_of(
    tool: str,
    answer: Answer,
    max_bytes: int,
    credentials: Credentials,
    context: ToolContext,
) -> JsonValue:
    """Return the content of an answer: JSON as it is, text as text, or data.

    Other data becomes an artifact if the host stores them, else base64.

    Raises:
        ToolExecutionError: The status is no success, or the answer is too large.
    """
    if not 200 <= answer.status < 300:
        raise _failed(tool, answer, credentials)
    is_json = answer.media_type.endswith("json")
    if len(answer.body) > max_bytes:
        raise _unusable(tool, answer, f"more than {max_bytes:,} bytes")
    if is_json and count_values(answer.body, MAX_ANSWER_VALUES) > MAX_ANSWER_VALUES:
        raise _unusable(tool, answer, f"more than {MAX_ANSWER_VALUES:,} values")
    if answer.is_packed:
        raise _unusable(tool, answer, "compressed content")
    if not answer.body:
        return None
    if is_json:
        try:
            value: JsonValue = credentials.hidden(read_json(answer.body))
        except ValueError:
            return credentials.hidden(decoded(answer.body, answer.charset))  # type: ignore[no-any-return]
        return value
    if answer.media_type.startswith("text/") or answer.media_type.endswith(_TEXT):
        return credentials.hidden(decoded(answer.body, answer.charset))  # type: ignore[no-any-return]
    return _data(tool, answer, credentials.hidden_bytes(answer.body), context)


def _data(
    tool: str, answer: Answer, data: bytes, context: ToolContext
) -> dict[str, Any]:
    block = {"media_type": answer.media_type, "bytes": len(data)}
    if context.artifacts is None:
        return block | {"data": base64.b64encode(data).decode()}
    return block | {"artifact": context.save_artifact(tool, data, answer.media_type)}


def _failed(tool: str, answer: Answer, credentials: Credentials) -> ToolExecutionError:
    details: dict[str, Any] = {"status": answer.status}
    hint = "change the arguments as it says, or use another tool"
    if 300 <= answer.status < 400:
        text, hint = "it leads elsewhere, where no request goes", "use another tool"
    else:
        plain = credentials.hidden(decoded(answer.body, answer.charset))
        text = escaped(plain.strip(), MAX_ERROR_CHARACTERS) or "it does not say why"
    if answer.status in (429, 503):
        hint = "try again later"
        if answer.retry_after.isascii() and answer.retry_after.isdigit():
            details["retry_after"] = int(answer.retry_after[:9])
    return ToolExecutionError(
        f"{tool} failed with HTTP status {answer.status}: {text}",
        hint=hint,
        details=details,
    )


def _unusable(tool: str, answer: Answer, what: str) -> ToolExecutionError:
    return ToolExecutionError(
        f"{tool} was called (HTTP status {answer.status}), and answered with {what}",
        hint="do not call it again for the same; ask for less, or in pages",
        details={"status": answer.status},
    )
