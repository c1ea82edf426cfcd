"""Reads requests: whose they are, their queries, and their bodies as JSON."""

from __future__ import annotations

from typing import Any, TypeVar

from starlette.requests import Request

from toolcell.core import InvalidInputError
from toolcell.core.event_loop import give_way, is_large

from ..config.server import ServerConfig
from ..http.bodies import Bounds, parse
from ..http.tokens import Token, TokenStore
from ..operator.event_bus import OPERATORS
from .bodies import Body
from .errors import InvalidRequestError, RequestRefusedError

_B = TypeVar("_B", bound=Body)


def read_token(request: Request, tokens: TokenStore) -> Token:
    """Return the token of a request.

    Raises:
        RequestRefusedError: 401: there is none, or it is not valid.
    """
    given = request.headers.getlist("authorization")
    scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    token = tokens.find(text.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise RequestRefusedError(
            401,
            "no_token",
            "the request has no valid token",
            hint="send `Authorization: Bearer` and a token of `toolcell tokens create`",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return token


def check_operator(token: Token) -> None:
    """Check that a token is an operator's.

    Raises:
        RequestRefusedError: 403: it is not.
    """
    if not token.operator:
        raise RequestRefusedError(
            403,
            "no_operator",
            "this token is not an operator's",
            hint="`toolcell tokens create --operator` makes one that is",
        )


def whose(token: Token, wanted: str | None) -> str | None:
    """Return the agent that a request is about; None: all agents.

    Args:
        token: The token of the request.
        wanted: The agent that it names, `*` for all; None: that of the token.

    Raises:
        RequestRefusedError: 403: it is about another agent, and the token not an
            operator's.
    """
    if wanted is None or wanted == token.agent_id:
        return token.agent_id
    check_operator(token)
    return None if wanted == OPERATORS else wanted


def read_query(request: Request, kind: type[_B]) -> _B:
    """Return the query of a request.

    Raises:
        InvalidRequestError: It has other names or values, or names one twice.
    """
    pairs = request.query_params.multi_items()
    values = dict(pairs)
    if len(values) < len(pairs):
        raise InvalidRequestError(
            "the query names a value twice", hint="name each value once"
        )
    return _checked(kind, values)


async def read_body(
    request: Request, kind: type[_B], settings: ServerConfig
) -> tuple[_B, int]:
    """Return the body of a request, and its size in bytes.

    Raises:
        RequestRefusedError: 415: it says that it is something else than JSON.
        BodyError: It is no JSON, late, or too large.
        InvalidRequestError: It does not have the form of `kind`.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if media_type.lower() != "application/json":
        raise RequestRefusedError(
            415,
            "not_json",
            "the body is not said to be JSON",
            hint="send `Content-Type: application/json`",
        )
    bounds = Bounds(settings.max_body_bytes, settings.max_body_values)
    data = await bounds.read(request)
    values = parse(data)
    if is_large(values):
        await give_way()
    return _checked(kind, values), len(data)


def _checked(kind: type[_B], values: Any) -> _B:
    try:
        return kind.model_validate(values)
    except InvalidInputError as error:
        raise InvalidRequestError(
            error.message,
            hint="see /v1/openapi.json",
            details=error.details,
        ) from None
