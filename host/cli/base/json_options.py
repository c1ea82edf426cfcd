"""Options and arguments that are JSON."""

from __future__ import annotations

import sys
from typing import Any

from toolcell.core import InvalidInputError
from toolcell.core.text.strict_json import read_json


def read_option(text: str, name: str, *, example: str) -> Any:
    """Return the value of an option in JSON; `-` reads it from standard input.

    Args:
        text: What was typed.
        name: The name of the option, for errors.
        example: What may be typed, for errors.

    Raises:
        InvalidInputError: It is no JSON.
    """
    if text == "-":
        text, name = sys.stdin.read(), "standard input"
    try:
        return read_json(text)
    except UnicodeEncodeError:
        why = "it, or the locale, is not UTF-8"
    except ValueError as error:
        why = str(error)
    raise InvalidInputError(f"{name} is no JSON: {why}", hint=f"such as {example}")


def read_object(text: str, name: str, *, example: str) -> dict[str, Any]:
    """Return the value of an option, as `read_option` does, if it is an object.

    Raises:
        InvalidInputError: It is no JSON, or no object.
    """
    value = read_option(text, name, example=example)
    if not isinstance(value, dict):
        raise InvalidInputError(f"{name} is no JSON object", hint=f"such as {example}")
    return value
