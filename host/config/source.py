"""Reads `toolcell.toml`, and the environment variables that override it.

`TOOLCELL__SANDBOX__BACKEND=docker` stands for `backend = "docker"` in `[sandbox]`:
`TOOLCELL`, then the keys in capital letters, each after two underscores. The value is
read as TOML, and as plain text if it is not TOML. It replaces the value in the file;
a list or a table is replaced as a whole.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from toolcell.core import ConfigError
from toolcell.core.models import field_of, first_errors
from toolcell.core.text.source_positions import SourcePositions, toml_positions

from .base import FORMS

MAX_BYTES = 4_194_304
"""Size of a configuration file. A larger one is refused."""

PREFIX = "TOOLCELL__"


@dataclass(frozen=True, kw_only=True)
class ConfigSource:
    """A configuration as it was read, before it is checked."""

    path: Path
    text: str
    document: dict[str, Any]
    variables: Mapping[tuple[str, ...], str]
    """The environment variables that were used, by the keys that they set."""

    def error(self, error: ValidationError, model: type[BaseModel]) -> ConfigError:
        """Return the error of a model's invalid values, with the place of each."""
        problems = []
        for item in first_errors(error):
            field = field_of(item)
            reason = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                reason = _no_such_key(model, item["loc"])
            elif form := FORMS.get(item.get("ctx", {}).get("pattern", "")):
                reason = f"write {form}"
            problems.append(
                {"field": field, "reason": reason, **self._place(item["loc"])}
            )
        described = "; ".join(map(_describe, problems))
        if more := error.error_count() - len(problems):
            described += f"; and {more} more"
        return ConfigError(
            f"{self.path}: {described}",
            hint="docs/configuration.md has every key",
            details={"problems": problems},
        )

    @cached_property
    def _positions(self) -> SourcePositions:
        return toml_positions(self.text)

    def _place(self, location: Sequence[str | int]) -> dict[str, Any]:
        for keys, name in self.variables.items():
            both = min(len(keys), len(location))
            if both and keys[:both] == tuple(location[:both]):
                return {"variable": name}
        if not location:
            return {}
        line, column = self._positions.find(location)
        return {"line": line, "column": column}


def _no_such_key(model: type[BaseModel], location: Sequence[str | int]) -> str:
    within: type[BaseModel] | None = model
    for key in location[:-1]:
        if within is not None and isinstance(key, str):
            field = within.model_fields.get(key)
            within = None if field is None else _model_in(field.annotation)
    known = [] if within is None else list(within.model_fields)
    close = get_close_matches(str(location[-1]), known, n=1)
    return "there is no such key" + (f"; did you mean {close[0]}?" if close else "")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((each for each in found if each is not None), None)


def _describe(problem: Mapping[str, Any]) -> str:
    place = f"variable {problem['variable']}" if "variable" in problem else ""
    if "line" in problem:
        place = f"line {problem['line']}, column {problem['column']}"
    parts = (place, problem["field"], problem["reason"])
    return ": ".join(part for part in parts if part)


def read_source(path: Path, environ: Mapping[str, str]) -> ConfigSource:
    """Return the configuration of a file and the environment.

    Raises:
        ConfigError: The file cannot be read, or a variable matches no key.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(
                f"{path} is larger than 4 MiB",
                hint="put policies into their own files, named in `policy_files`",
            )
        text = data.decode("utf-8-sig")
        # Amounts of money are never floats.
        document = tomllib.loads(text, parse_float=Decimal)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}", hint="`toolcell init` writes one"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}",
            hint="name a file that this user may read",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 (byte {error.start})", hint="save it as UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:
        # Not of bad TOML alone: Python reads no number of more than 4,300 digits.
        raise ConfigError(f"{path}: {error}", hint="mend the TOML there") from None
    return ConfigSource(
        path=path,
        text=text,
        document=document,
        variables=_override(document, environ),
    )


def _override(
    document: dict[str, Any], environ: Mapping[str, str]
) -> dict[tuple[str, ...], str]:
    used: dict[tuple[str, ...], str] = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        keys = tuple(name.removeprefix(PREFIX).lower().split("__"))
        table: Any = document
        for key in keys[:-1]:
            table = table.setdefault(key, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict) or not all(keys):
            raise ConfigError(
                f"the variable {name} matches no key of the configuration",
                hint="a list is replaced as a whole",
            )
        table[keys[-1]] = _value(environ[name])
        used[keys] = name
    return used


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}", parse_float=Decimal)
    except (ValueError, RecursionError):
        return text
    # Further lines would be further keys.
    return read["value"] if len(read) == 1 else text
