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
            for each in secrets.values()
            for plain in (each, each.partition(":")[2])
            for form in (plain, quote(plain, safe=""), _encoded(each))
        }
        found = sorted(forms, key=len, reverse=True)
        self._seen = [each for each in found if len(each) >= _LEAST_CHARACTERS]

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
        for each in schemes:
            secret = self._secrets[each.scheme]
            if each.kind == "basic":
                secret = f"Basic {_encoded(secret)}"
            elif each.kind == "bearer":
                secret = f"Bearer {secret}"
            if each.location == "header":
                _check_free(each, draft.headers)
                draft.headers[each.name] = secret
                continue
            pairs = draft.query if each.location == "query" else draft.cookies
            name = quote(each.name, safe="")
            _check_free(each, dict(pairs))
            pairs.append((name, quote(secret, safe="")))

    def hidden(self, value: Any) -> Any:
        """Return a value of an answer without the secrets."""
        if isinstance(value, str):
            for each in self._seen:
                value = value.replace(each, HIDDEN)
            return value
        if isinstance(value, list):
            return [self.hidden(each) for each in value]
        if isinstance(value, dict):
            return {
                self.hidden(name): self.hidden(each) for name, each in value.items()
            }
        return value

    def hidden_bytes(self, data: bytes) -> bytes:
        """Return data of an answer without the secrets."""
        for each in self._seen:
            data = data.replace(each.encode(), HIDDEN.encode())
        return data


def _encoded(secret: str) -> str:
    return base64.b64encode(secret.encode()).decode()


def _check_free(scheme: SecurityScheme, given: Mapping[str, str]) -> None:
    if quote(scheme.name, safe="").lower() in {each.lower() for each in given}:
        raise ToolExecutionError(
            f"the argument {scheme.name} is not for a caller to give",
            hint="leave it out",
        )
