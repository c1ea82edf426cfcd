"""The state that a node sees is a model as its class makes it."""

from __future__ import annotations

import math
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, PrivateAttr

from toolcell.core import InvalidInputError
from toolcell.flow.state.fields import Schema


class Plain(BaseModel):
    n: int = 0


class Private(BaseModel):
    n: int = 0
    _seen: int = PrivateAttr(default=3)


class Completed(BaseModel):
    n: int = 0

    def model_post_init(self, context: Any) -> None:
        object.__setattr__(self, "n", self.n + 1)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int = 0


def viewed(model: type[BaseModel], n: int) -> Any:
    schema = Schema(model)
    return schema.decode(schema.start({"n": n}))


def test_a_state_has_its_private_attributes_and_what_follows_its_making() -> None:
    assert viewed(Private, 5)._seen == 3
    assert viewed(Completed, 5).n == 7  # made for the start, and for the node
    assert viewed(Open, 5).model_extra == {}
    assert viewed(Plain, 5) == Plain(n=5)
    assert viewed(Plain, 5).model_fields_set == {"n"}


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (int, True, b"1"),
        (int, -(1 << 70), b"-%d" % (1 << 70)),
        (bool, True, b"true"),
        (float, 1, b"1.0"),
        (str, 'ä"\n', '"ä\\"\\n"'.encode()),
        (type(None), None, b"null"),
        (Annotated[int, AfterValidator(lambda n: n + 1)], 1, b"2"),
    ],
)
def test_simple_values_are_written_as_their_type_says(
    type_: Any, value: Any, text: bytes
) -> None:
    class State(BaseModel):
        field: type_

    assert Schema(State).fields["field"].encode_update(value) == text


@pytest.mark.parametrize(("type_", "value"), [(float, math.nan), (str, "\ud800")])
def test_what_json_has_not_is_refused(type_: Any, value: Any) -> None:
    class State(BaseModel):
        field: type_

    with pytest.raises(InvalidInputError):
        Schema(State).encode_update({"field": value}, "node")
