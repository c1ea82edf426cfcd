"""Messages of clients, and pages of lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, Response

from toolcell.core.models import problems_of

from ...http.bodies import parse
from .errors import APIError

_MAX_PAGE = 100

M = TypeVar("M", bound=BaseModel)


def parsed(model: type[M], data: bytes) -> M:
    """Return the message of a checked text. Raises APIError, BodyError."""
    try:
        return model.model_validate(parse(data or b"{}"))
    except ValidationError as error:
        field, reason = problems_of(error)[0]
        raise APIError(400, f"{field or 'the body'}: {reason}") from None


def page(found: list[dict[str, Any]], query: Mapping[str, str]) -> Response:
    """Answer with the page of a list that a query asks for. Raises APIError."""
    texts = (query.get("nextToken", "0"), query.get("limit", str(_MAX_PAGE)))
    if not all(text.isascii() and text.isdecimal() for text in texts):
        raise APIError(400, "nextToken and limit are numbers")
    start, length = (int(text[:9]) for text in texts)
    end = start + min(max(length, 1), _MAX_PAGE)
    headers = {"x-next-token": str(end)} if end < len(found) else None
    return JSONResponse(found[start:end], headers=headers)
