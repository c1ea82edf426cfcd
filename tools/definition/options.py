"""The options of a tool besides its parameters, and the rules for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
)

from toolcell.core import ConfigError
from toolcell.guard.spi import ANY_WAY, Via

MAX_NAME_CHARACTERS = 64
"""Length of a name; a longer one is refused. OpenAI takes no more."""

MAX_DESCRIPTION_CHARACTERS = 4096
"""Length of a description; a longer one is refused."""

ARGUMENT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""The names of arguments that all providers take."""

_ToolName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_-])?$",
        max_length=MAX_NAME_CHARACTERS,
    ),
]
_Version = Annotated[
    str, StringConstraints(pattern=r"^(0|[1-9]\d{0,8})(\.(0|[1-9]\d{0,8})){2}$")
]
_Unit = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
_CostUnits = Annotated[int, Field(ge=0)]
_Money = Annotated[str, StringConstraints(pattern=r"^\d{1,18}(\.\d{1,18})?$")]
_Tag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]


class ToolOptions(TypedDict, total=False):
    """The options of `tool` and `FunctionTool`."""

    name: str
    """ASCII letters, digits, `_`, `-` and `.`, at most 64; default: the function's."""

    description: str
    """The text for models; default: the first paragraph of the docstring."""

    parameters: Mapping[str, Any]
    """A JSON Schema written by hand; default: made of the signature."""

    version: str
    """`MAJOR.MINOR.PATCH`, default 1.0.0."""

    idempotent: bool
    """True if equal arguments may share one result, and a failure may be retried."""

    timeout: float | None
    """Seconds; when it is reached the call ends as `timeout`. Default: the
    executor's."""

    cost: Mapping[str, int | str]
    """The maximum that one call uses, by unit: whole numbers, decimal text for usd."""

    tags: Collection[str]
    """Labels that the rules of policies can name."""

    callers: Collection[Via]
    """The callers that it accepts: `model`, which asks for a call itself, `code`, a
    program that calls tools, or both, the default. The guard enforces it."""

    sandboxed: bool
    """True if the function runs in a cell."""

    requires_approval: bool
    """True if a person has to approve each call."""

    preview: Callable[..., Any] | None
    """A function, async or not, that takes the arguments and returns what the call
    would do as text, such as a difference or a message, for people who approve it. It
    runs in this process before anybody has approved, so it must change nothing."""

    examples: Sequence[Mapping[str, JsonValue]]
    """Arguments to show to a model; they have to be valid."""

    strict: bool
    """True, the default: values must have the declared type, and unknown keys are
    refused. False: "2" passes for 2 and unknown keys are dropped."""


class CheckedOptions(BaseModel):
    """The options of one tool, checked. Unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: _ToolName
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARACTERS)] = ""
    version: _Version = "1.0.0"
    idempotent: bool = False
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    cost: dict[_Unit, _CostUnits | _Money] = Field(default_factory=dict)
    tags: frozenset[_Tag] = frozenset()
    callers: Annotated[frozenset[Via], Field(min_length=1)] = ANY_WAY
    sandboxed: bool = False
    requires_approval: bool = False
    preview: Callable[..., Any] | None = None
    examples: tuple[dict[str, JsonValue], ...] = ()
    strict: bool = True


_HINTS = {
    "name": "take ASCII letters, digits, `_`, `-` and `.`, at most 64, as providers do",
    "version": "write MAJOR.MINOR.PATCH",
    "callers": 'name "model", "code" or both',
    "timeout": "give seconds above 0, or None for the executor's",
    "cost": 'give whole numbers by unit, and decimal text as in {"usd": "0.01"}',
}


def check_options(owner: str, given: Mapping[str, Any]) -> CheckedOptions:
    """Return options with their defaults.

    Args:
        owner: The owner of the options, for messages.
        given: Options by name.

    Raises:
        ConfigError: One is unknown, or its value cannot be used.
    """
    values = dict(given)
    kinds = (("tags", frozenset), ("callers", frozenset), ("examples", tuple))
    for name, kind in kinds:
        if isinstance(values.get(name), Collection) and not isinstance(
            values[name], str
        ):
            values[name] = kind(values[name])
    if isinstance(values.get("cost"), Mapping):
        values["cost"] = dict(values["cost"])
    try:
        return CheckedOptions(**values)
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False)[0]
        option = str(item["loc"][0])
        known = ", ".join(ToolOptions.__annotations__)
        unknown = item["type"] == "extra_forbidden"
        reason = "there is no such option" if unknown else item["msg"]
        hint = f"options are {known}" if unknown else _HINTS.get(option)
        raise ConfigError(
            f"{owner}: option {option} cannot be used: {reason}", hint=hint
        ) from None


def provider_name(name: str) -> str:
    """Return a name in the spelling that every provider accepts: dots become `_`."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
