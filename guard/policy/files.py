"""Policies in TOML and YAML files; a file is used as a whole or not at all.

A file has one list, `policies`. Decimals need no quotes, since they are never read as
floats. Editors can use the schema of `policy_schema`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolcell.core import PolicyError
from toolcell.core.models import field_of, first_errors
from toolcell.core.text.source_positions import SourcePositions, toml_positions

from .base import PolicyModel
from .policy import AgentPolicy
from .yaml_document import yaml_document

MAX_BYTES = 4_194_304


class PolicyFile(PolicyModel):
    """The content of a policy file."""

    policies: tuple[AgentPolicy, ...]


def load_policies(path: str | os.PathLike[str]) -> list[AgentPolicy]:
    """Return the policies of a `.toml`, `.yaml` or `.yml` file of at most 4 MiB.

    Raises:
        PolicyError: The file cannot be read or a policy is not valid; the message and
            `details["problems"]` say in which line and column.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise PolicyError(
                f"{path} is larger than 4 MiB", hint="split it into several files"
            )
        document, positions = _read(path, data.decode("utf-8-sig"))
    except OSError as error:
        raise PolicyError(
            f"{path} cannot be read: {error.strerror}",
            hint="name a file that this user may read",
        ) from error
    except UnicodeDecodeError as error:
        raise PolicyError(
            f"{path} is not UTF-8 (byte {error.start})", hint="save it as UTF-8"
        ) from error
    try:
        return list(TypeAdapter(PolicyFile).validate_python(document).policies)
    except ValidationError as error:
        raise _with_positions(path, error, positions()) from None


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy file, for editors."""
    schema = PolicyFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _read(path: Path, text: str) -> tuple[Any, Callable[[], SourcePositions]]:
    """Return the values of a file, and how to find their positions."""
    if path.suffix == ".toml":
        try:
            document = tomllib.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise PolicyError(f"{path}: {error}", hint="mend the TOML there") from None
        return document, partial(toml_positions, text)
    if path.suffix in (".yaml", ".yml"):
        document, positions = yaml_document(path, text)
        return document, lambda: positions
    raise PolicyError(
        f"{path} is neither .toml nor .yaml",
        hint="end its name in .toml, .yaml or .yml",
    )


def _with_positions(
    path: Path, error: ValidationError, positions: SourcePositions
) -> PolicyError:
    problems: list[dict[str, Any]] = []
    for item in first_errors(error):
        line, column = positions.find(item["loc"])
        field = field_of(item) or "policies"
        place = {"line": line, "column": column}
        problems.append({"field": field, "reason": item["msg"], **place})
    lines = [
        "line {line}, column {column}: {field}: {reason}".format(**problem)
        for problem in problems
    ]
    if more := error.error_count() - len(problems):
        lines.append(f"and {more} more")
    return PolicyError(
        f"{path}: {'; '.join(lines)}",
        hint="docs/configuration.md lists the keys of a policy",
        details={"problems": problems},
    )
