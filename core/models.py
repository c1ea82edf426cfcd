"""Values that are checked once and never change: their base, and their fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
)

from .errors import InvalidInputError, ToolcellError

# Kept: `json.dumps` would make a new one for each text.
json_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

_FIELD = 200
"""Characters of the name of a field in an error; the rest is left out."""

_REASON = 1_000
"""Characters of a reason in an error; the rest is left out."""

_PROBLEMS = 20
"""Problems that an error names; the others are counted."""


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


_M = TypeVar("_M", bound=BaseModel)
_set = object.__setattr__


def construct_unchecked(kind: type[_M], fields: dict[str, Any], given: set[str]) -> _M:
    """Return a model of values that are known to be valid, as by unpickling.

    For what is made for each call or run. With checks a guarded call in memory takes
    1.6 times as long, a call without a guard 1.1 times, and the result of a run 15 µs
    instead of 6. `model_construct` looks at each field.

    Args:
        kind: The model.
        fields: A value for each of its fields; not copied.
        given: The names that count as set.
    """
    made = kind.__new__(kind)
    _set(made, "__pydantic_fields_set__", given)
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    _set(made, "__dict__", fields)
    return made


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """Return the first problems of values: the field of each, and the reason.

    A stranger may have written what stands in both, so they are cut.
    """
    return [
        (field_of(item), item["msg"].removeprefix("Value error, ")[:_REASON])
        for item in first_errors(error)
    ]


def first_errors(error: ValidationError) -> list[Any]:
    """Return what pydantic says about the first problems of values."""
    return error.errors(include_input=False, include_url=False)[:_PROBLEMS]


def field_of(item: Mapping[str, Any]) -> str:
    """Return the name of a problem's field, cut."""
    return ".".join(map(str, item["loc"]))[:_FIELD]


class FrozenModel(BaseModel):
    """Frozen, unknown keys refused; a bad value is one of our errors.

    A subclass says which error that is, and what its hint is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    refusal: ClassVar[type[ToolcellError]] = InvalidInputError
    refusal_hint: ClassVar[str | None] = None

    def __init__(self, **values: Any) -> None:
        """Check the values.

        Raises:
            ToolcellError: They are not valid; of the class in `refusal`.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self.refused(error) from None

    # Marks the above as no more than BaseModel's, so that a model inside another is
    # validated in place and its errors keep their path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Check values that came as an object. Raises as `__init__` does."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise cls.refused(error) from None

    @classmethod
    def model_validate_json(
        cls, json_data: str | bytes | bytearray, **options: Any
    ) -> Self:
        """Check values that came as JSON. Raises as `__init__` does."""
        try:
            return super().model_validate_json(json_data, **options)
        except ValidationError as error:
            raise cls.refused(error) from None

    @classmethod
    def refused(cls, error: ValidationError) -> ToolcellError:
        """Return the error of values that do not validate, with its first problems."""
        problems = [
            {"field": field or cls.__name__, "reason": reason}
            for field, reason in problems_of(error)
        ]
        text = "; ".join(f"{item['field']}: {item['reason']}" for item in problems)
        if more := error.error_count() - len(problems):
            text += f"; and {more} more"
        return cls.refusal(
            f"{cls.__name__} is not valid: {text}",
            hint=cls.refusal_hint,
            details={"problems": problems},
        )
