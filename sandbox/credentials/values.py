"""The values of credentials, read again when their files change."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable, Sequence

from toolcell.core import ConfigError
from toolcell.core.secrets import read_secret

from ..config.credentials import Credential

MIN_RANDOM = 16
"""Characters of a value behind its prefix, at least."""

_VALUE = re.compile(r"[A-Za-z0-9._~+/=:-]{20,4096}")
_log = logging.getLogger(__name__)


class Value:
    """The value of one credential.

    Args:
        rule: Says where it is.

    Raises:
        ConfigError: It cannot be read or used.
    """

    def __init__(self, rule: Credential) -> None:
        self.name = rule.name
        self._rule = rule
        self._version = _version(rule.value)
        self.now = _read(rule)
        """The value that requests get."""

        self.before = ""
        """The one before it, which answers may still show; empty: there was none."""

        self.problem = ""
        """The reason for which what is in its file now cannot be used."""

    def refresh(self, others: Sequence[Value]) -> bool:
        """Read it again if its file has changed; return whether it is another one.

        Args:
            others: All values of the sandbox, of which none may be a part of it.
        """
        version = _version(self._rule.value)
        if version == self._version and not self.problem:
            return False
        try:
            value = _read(self._rule)
            rest = [(other.name, other.now) for other in others if other is not self]
            check_apart([(self.name, value), *rest])
        except ConfigError as error:
            # The next request looks again, as the file may be half written.
            if self.problem != error.message:
                _log.error("%s", error.message)
            self.problem = error.message
            return False
        self.problem, self._version = "", version
        if value == self.now:
            return False
        # Where one is a part of the other, the mask of one would show a rest.
        is_apart = value not in self.now and self.now not in value
        self.before, self.now = self.now if is_apart else "", value
        return True


def check_apart(values: Iterable[tuple[str, str]]) -> None:
    """Refuse a value that is a part of another: one's mask would show the other's rest.

    Args:
        values: Names and values.

    Raises:
        ConfigError: There is one.
    """
    found = list(values)
    for name, value in found:
        for other, text in found:
            if value != text and value in text:
                raise ConfigError(
                    f"the credential {name}: its value is a part of that of {other}",
                    hint="give each of them its own value",
                )


def _version(reference: str) -> tuple[int, ...]:
    """Return what changes when a file does; empty for others, and a missing one."""
    kind, _, path = reference.partition(":")
    try:
        found = os.stat(path) if kind == "file" else None
    except OSError:
        return ()
    if found is None or not stat.S_ISREG(found.st_mode):
        return ()
    # The second is that of permissions, too.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _read(rule: Credential) -> str:
    kind, _, path = rule.value.partition(":")
    if kind == "file" and os.path.exists(path) and not os.path.isfile(path):
        # To open a pipe would wait for whoever writes into it.
        raise ConfigError(
            f"the credential {rule.name}: {rule.value} is no regular file",
            hint="name a file that has the value alone",
        )
    try:
        value = read_secret(rule.value).get_secret_value()
    except ConfigError as error:
        raise ConfigError(
            f"the credential {rule.name}: {error.message}", hint=error.hint
        ) from None
    if not _VALUE.fullmatch(value) or len(value) < len(rule.prefix) + MIN_RANDOM:
        raise ConfigError(
            f"the credential {rule.name}: {rule.value} is not 20 to 4,096 characters "
            "that are letters, digits or . _ ~ + / = : -, and at least "
            f"{MIN_RANDOM} more than its prefix",
            hint="answers are searched for it: a shorter one is found by chance, and "
            "others have too many spellings",
        )
    return value
