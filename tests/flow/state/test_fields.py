"""The state that a node sees is a model as its class makes it."""

from __future__ import annotations

import math
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    computed_field,
    field_serializer,
)

from toolcell.core import GraphError, InvalidInputError
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
        (Annotated[int, AfterValidator(abs)], -2, b"2"),
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


class Mail(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    sender: str = Field(alias="from")
    to: str = Field("", validation_alias="To", serialization_alias="Recipient")


class Sum(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.n


class More(Plain):
    more: int = 0


class Twin(BaseModel):
    n: int = 0


class Half(BaseModel):
    n: int = Field(default=0, exclude=True)


class Odd(BaseModel):
    n: int

    @field_serializer("n")
    def text(self, n: int) -> str:
        return f"no number: {n}"


Growing = Annotated[int, AfterValidator(lambda n: n + 1)]


@pytest.mark.promise("T5")
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Mail, Mail.model_validate({"from": "a", "To": "b"})),
        (list[Mail], [Mail.model_validate({"from": "a"})]),
        (Sum, Sum(n=1)),
        (Plain | Twin, Plain(n=1)),
        (Half, Half()),
        (dict[str, Plain], {"a": Plain(n=2)}),
    ],
)
def test_a_value_is_read_as_it_was(type_: Any, value: Any) -> None:
    class State(BaseModel):
        field: type_

    field = Schema(State).fields["field"]
    assert field.decode_update(field.encode_update(value)) == value


@pytest.mark.promise("T5")
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Plain, More(n=1, more=2)),
        (tuple[Plain, ...], (Plain(), More())),
        (Plain | Twin, Twin(n=1)),
        (str | date, date(2024, 1, 1)),
        (Half, Half(n=1)),
        (Odd, Odd(n=1)),
        (Growing, 1),
        (dict[str, Half], {"a": Half(n=1)}),
    ],
)
def test_a_value_that_would_be_read_as_another_is_refused(
    type_: Any, value: Any
) -> None:
    class State(BaseModel):
        field: type_ = None

    with pytest.raises(InvalidInputError, match=r"'field'") as caught:
        Schema(State).encode_update({"field": value}, "node")
    assert "no number" not in str(caught.value)


@pytest.mark.promise("T5")
@pytest.mark.parametrize("type_", [SecretStr, list[SecretStr], SecretStr | None])
def test_a_secret_is_no_part_of_a_state(type_: Any) -> None:
    class State(BaseModel):
        field: type_

    with pytest.raises(GraphError, match="a secret"):
        Schema(State)
