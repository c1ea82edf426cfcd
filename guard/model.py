"""The base of what policies are written with."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from toolcell.core import PolicyError


class PolicyModel(BaseModel):
    """Frozen, unknown keys refused; a bad value is a PolicyError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise policy_error(type(self).__name__, error) from None

    # Marks the above as no more than BaseModel's, so that a model inside another is
    # validated in place and its errors keep their path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def policy_error(name: str, error: ValidationError) -> PolicyError:
    """Return the error of a policy that does not validate, with each problem."""
    problems = [
        {"field": ".".join(map(str, item["loc"])) or name, "reason": item["msg"]}
        for item in error.errors(include_input=False, include_url=False)
    ]
    text = "; ".join(f"{item['field']}: {item['reason']}" for item in problems)
    return PolicyError(
        f"{name} is not valid: {text}",
        hint="see the docstring of the class for fields, units and ranges",
        details={"problems": problems},
    )
