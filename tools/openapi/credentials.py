"""Secrets of an API: put into a request as it is sent, and taken out of its answer."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from toolcell.core import ConfigError, ToolExecutionError

from .definition import OpenAPIDefinition, SecurityScheme
from .requests import Draft
from .schemas import unfit

HIDDEN = "[secret]"
_LEAST_CHARACTERS = 4
"""A shorter secret is not looked for in answers: it would be found everywhere."""

_HEADER = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


class Credentials:
    """The secrets of one API, by the names of its security schemes.

    Args:
        secrets: The secrets; one of `basic` is `user:password`.

    Raises:
        ConfigError: One cannot stand in a header. The message does not repeat it.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        for name, secret in secrets.items():
            if not _HEADER.fullmatch(secret):
                raise ConfigError(
                    f"the secret of {name!r} is not one line of ASCII",
                    hint="look at its variable or file for a line end",
                )
        self._secrets = dict(secrets)
        forms = {
            form
            for secret in secrets.values()
            for plain in (secret, secret.partition(":")[2])
            for form in (plain, quote(plain, safe=""), _encoded(secret))
        }
        found = sorted(forms, key=len, reverse=True)
        self._seen = [text for text in found if len(text) >= _LEAST_CHARACTERS]

    def chosen(self, definition: OpenAPIDefinition) -> tuple[SecurityScheme, ...]:
        """Return the schemes that a request uses.

        Raises:
            ConfigError: There is no secret for them.
        """
        sets = definition.security
        known = [
            each
            for each in sets
            if each and all(one.scheme in self._secrets for one in each)
        ]
        if known or not sets or () in sets:
            return known[0] if known else ()
        names = " or ".join(" and ".join(one.scheme for one in each) for each in sets)
        raise unfit(f"it needs a secret for {names}")

    def add_to(self, draft: Draft, schemes: tuple[SecurityScheme, ...]) -> None:
        """Put the secrets into a request.

        Raises:
            ToolExecutionError: An argument stands in the place of a secret.
        """
        for scheme in schemes:
            secret = self._secrets[scheme.scheme]
            if scheme.kind == "basic":
                secret = f"Basic {_encoded(secret)}"
            elif scheme.kind == "bearer":
                secret = f"Bearer {secret}"
            if scheme.location == "header":
                _check_free(scheme, draft.headers)
                draft.headers[scheme.name] = secret
                continue
            pairs = draft.query if scheme.location == "query" else draft.cookies
            name = quote(scheme.name, safe="")
            _check_free(scheme, dict(pairs))
            pairs.append((name, quote(secret, safe="")))

    def hidden(self, value: Any) -> Any:
        """Return a value of an answer without the secrets."""
        if isinstance(value, str):
            for secret in self._seen:
                value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, list):
            return [self.hidden(item) for item in value]
        if isinstance(value, dict):
            return {
                self.hidden(name): self.hidden(item) for name, item in value.items()
            }
        return value

    def hidden_bytes(self, data: bytes) -> bytes:
        """Return data of an answer without the secrets."""
        for secret in self._seen:
            data = data.replace(secret.encode(), HIDDEN.encode())
        return data


def _encoded(secret: str) -> str:
    return base64.b64encode(secret.encode()).decode()


def _check_free(scheme: SecurityScheme, given: Mapping[str, str]) -> None:
    if quote(scheme.name, safe="").lower() in {name.lower() for name in given}:
        raise ToolExecutionError(
            f"the argument {scheme.name} is not for a caller to give",
            hint="leave it out",
        )
