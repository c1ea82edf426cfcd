"""Secrets of the configuration: named in it, and read from elsewhere."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, SecretStr, ValidationInfo

from .errors import ConfigError

MAX_BYTES = 65_536
"""Size of a file with a secret. A larger one is refused."""

_ENV = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(r"file:[^\0]+")


def _checked(text: str, info: ValidationInfo) -> str:
    # The text may be the secret itself, so no message repeats it.
    if _ENV.fullmatch(text):
        return text
    if not _FILE.fullmatch(text):
        raise ValueError("a secret is named, never written: env:NAME or file:/path")
    folder = (info.context or {}).get("folder", "")
    return f"file:{Path(folder, text.removeprefix('file:'))}"


SecretReference = Annotated[str, AfterValidator(_checked)]
"""The place of a secret: `env:NAME` or `file:/path`."""


def read_secret(reference: str, environ: Mapping[str, str] | None = None) -> SecretStr:
    """Return the secret that a reference names; a line end at its end is cut off.

    Args:
        reference: `env:NAME` or `file:/path`.
        environ: The environment; default that of this process.

    Raises:
        ConfigError: It is not there, empty, no text in UTF-8 or too large.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = (os.environ if environ is None else environ).get(name, "")
    else:
        value = _read(name, reference)
    if not value:
        raise ConfigError(
            f"the secret {reference} is not set, or empty",
            hint=f"set the variable {name}" if kind == "env" else f"write it to {name}",
        )
    return SecretStr(value)


def _read(name: str, reference: str) -> str:
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(
                f"the secret {reference} is larger than 64 KiB",
                hint="name the file of the secret itself",
            )
        if b"\0" in data:
            raise ConfigError(
                f"the secret {reference} has a zero byte", hint="write it as text"
            )
        return data.decode().rstrip("\r\n")
    except OSError as error:
        raise ConfigError(
            f"the secret {reference} cannot be read: {error.strerror}",
            hint="name a file that this user may read",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"the secret {reference} is not UTF-8", hint="write it as text in UTF-8"
        ) from None
