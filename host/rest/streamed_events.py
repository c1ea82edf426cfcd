"""The model of server-sent events: one for each type, and for `stream.opened`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, Json, RootModel, create_model

from ..operator.events import EVENTS
from .bodies import Body

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
