"""The fields of messages, calls and results: each is checked, and JSON is copied."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue

# Kept: `json.dumps` would make a new one for each text.
json_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _whole(text: str) -> str:
    """Refuse half a surrogate pair, which no protocol can carry."""
    text.encode()
    return text


def copied(value: Any) -> Any:
    """Return a JSON value that shares nothing with the caller's.

    Raises:
        ValueError: It holds NaN, an infinity, half a surrogate pair, or is too deep.
    """
    if value is None or type(value) in (bool, int):
        return value
    try:
        text = json_text(value)
        text.encode()
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


JsonCopy = Annotated[JsonValue, AfterValidator(copied)]
JsonObjectCopy = Annotated[dict[str, JsonValue], AfterValidator(copied)]
# The bounds make pydantic look at each character: half a surrogate pair is refused.
Id = Annotated[str, Field(min_length=1, max_length=256)]
WholeText = Annotated[str, AfterValidator(_whole)]
Count = Annotated[int, Field(ge=0, strict=True)]
DECIMAL = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")
DecimalText = Annotated[str, Field(pattern=f"^{DECIMAL.pattern}$")]
