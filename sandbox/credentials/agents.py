"""Writes credentials into requests, and out of answers.

Programs have placeholders. The values are in this process alone: a request gets one
after it was judged, on its way to the server, and an answer that shows one gets the
placeholder in its place before the program reads it.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote

import h11

from ..config.credentials import Credential
from ..config.host_rules import HostRules
from .masking import Finder, Mask, spellings
from .values import Value, check_apart

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_BASIC = re.compile(rb"(?i:basic) +([A-Za-z0-9+/=]+) *")
# Pieces, and compressed answers, cannot be searched for a value.
_NOT_SENT = (b"accept-encoding", b"range", b"if-range")


class MisplacedError(Exception):
    """A placeholder is where no value may go."""

    def __init__(self) -> None:
        super().__init__(
            "the placeholder of a credential is where its value may not go: this host "
            "or this place of a request is none of the credential's. There is no other "
            "way to send it: say so"
        )


class UnreadableError(Exception):
    """The value of a credential cannot be used as it is now.

    Args:
        name: The credential.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the value of the credential {name} cannot be read at present: whoever "
            "runs this host has to mend it, as its log says"
        )


class _Owned(NamedTuple):
    """A credential as the programs of one agent have it."""

    rule: Credential
    hosts: HostRules
    value: Value
    placeholder: str


class Credentials:
    """The credentials of a sandbox.

    Args:
        rules: They say whose they are and where they go.

    Raises:
        ConfigError: A value cannot be read or used.
    """

    def __init__(self, rules: Iterable[Credential]) -> None:
        self._rules = [(rule, HostRules(rule.hosts), Value(rule)) for rule in rules]
        self._values = [value for _, _, value in self._rules]
        check_apart((value.name, value.now) for value in self._values)
        self._agents: dict[str | None, AgentCredentials | None] = {}

    def of(self, agent_id: str | None) -> AgentCredentials | None:
        """Return the credentials of an agent's programs; None if it has none."""
        known = any(agent_id in rule.agents for rule, _, _ in self._rules)
        key = agent_id if known else None
        if key not in self._agents:
            owned = [
                _Owned(rule, hosts, value, _placeholder(rule, value.now))
                for rule, hosts, value in self._rules
                if rule.is_of(key)
            ]
            found = AgentCredentials(owned, self._values) if owned else None
            self._agents[key] = found
        return self._agents[key]


class AgentCredentials:
    """The credentials of one agent's programs.

    Args:
        owned: They, with their placeholders.
        values: The values of all credentials of the sandbox.
    """

    def __init__(self, owned: list[_Owned], values: list[Value]) -> None:
        self._owned = owned
        self._values = values
        self._placeholders = tuple(
            text for each in owned for text in spellings(each.placeholder)
        )
        self._seen: list[tuple[str, str]] = []
        self._shown: dict[bytes, bytes] = {}
        self._refresh()

    def _refresh(self) -> None:
        """Read the values again whose files have changed."""
        for own in self._owned:
            own.value.refresh(self._values)
        seen = [(each.value.now, each.value.before) for each in self._owned]
        if seen == self._seen:
            return
        self._seen = seen
        self._shown.clear()
        for own in self._owned:
            for value in (own.value.now, own.value.before):
                for text in spellings(value) if value else ():
                    size = len(text)
                    filled = own.placeholder.encode() * (size // 20 + 1)
                    self._shown[text] = filled[:size]

    @property
    def variables(self) -> dict[str, str]:
        """The placeholders by the environment variables that programs find them in."""
        return {each.rule.variable: each.placeholder for each in self._owned}

    def placed(
        self, head: h11.Request, place: tuple[str, int] | None
    ) -> tuple[h11.Request, tuple[str, ...]]:
        """Return a head with the values in it, and the names of what it has.

        Args:
            head: The head for the server.
            place: Host and port of a server whose certificate is verified; None for
                another one.

        Raises:
            MisplacedError: A placeholder is where no value may go.
            UnreadableError: A value that it needs cannot be used.
        """
        self._refresh()
        target, headers = head.target, list(head.headers.raw_items())
        used: list[str] = []
        for own in self._owned:
            if place is None or not own.hosts.names(*place):
                continue
            before = target, headers
            target = _in_query(own, target)
            headers = [(name, _in_header(own, name, data)) for name, data in headers]
            if (target, headers) != before:
                if own.value.problem:
                    raise UnreadableError(own.rule.name)
                used.append(own.rule.name)
        rest = [head.method, target, *(part for header in headers for part in header)]
        rest += [_decoded(data) for _, data in headers]
        if any(text in part for part in rest for text in self._placeholders):
            raise MisplacedError
        kept = [header for header in headers if header[0].lower() not in _NOT_SENT]
        made = h11.Request(method=head.method, target=target, headers=kept)
        return made, tuple(used)

    def body_check(self) -> Callable[[bytes], None]:
        """Return what is called with each piece of a body; MisplacedError from it."""
        finder = Finder(self._placeholders)

        def check(data: bytes) -> None:
            if finder.found(data):
                raise MisplacedError

        return check

    def mask(self) -> Mask:
        """Return what writes placeholders over the values in an answer.

        They are those of each time: another agent's request may have got a new one.
        """
        return Mask(self._shown, self._refresh)


def _placeholder(rule: Credential, value: str) -> str:
    """Return a placeholder as long as the value, so that lengths of answers stay."""
    size = len(value) - len(rule.prefix)
    return rule.prefix + "".join(secrets.choice(_ALPHABET) for _ in range(size))


def _in_header(each: _Owned, name: bytes, data: bytes) -> bytes:
    """Return the value of a header with the credential in it, if it may be there."""
    title = name.decode("ascii").lower()
    where = [place.lower() for place in each.rule.where]
    if "basic" in where and title == "authorization":
        data = _in_basic(each, data)
    if f"header:{title}" in where:
        data = data.replace(each.placeholder.encode(), each.value.now.encode())
    return data


def _in_basic(each: _Owned, data: bytes) -> bytes:
    found = _BASIC.fullmatch(data)
    pair = found and _unbased(found[1])
    if not pair:
        return data
    user, colon, password = pair.partition(b":")
    own, value = each.placeholder.encode(), each.value.now.encode()
    made = [value if part == own else part for part in (user, password)]
    if made == [user, password]:
        return data
    return b"Basic " + base64.b64encode(made[0] + colon + made[1])


def _in_query(each: _Owned, target: bytes) -> bytes:
    path, mark, query = target.partition(b"?")
    names = {place[6:] for place in each.rule.where if place.startswith("query:")}

    def parts() -> Iterator[str]:
        for part in query.decode("ascii").split("&"):
            name, equals, text = part.partition("=")
            is_it = unquote(name) in names and unquote(text) == each.placeholder
            yield name + equals + quote(each.value.now, safe="") if is_it else part

    return path + mark + "&".join(parts()).encode() if names else target


def _decoded(data: bytes) -> bytes:
    """Return what basic authentication carries; its base64 begins anywhere."""
    found = _BASIC.fullmatch(data)
    return _unbased(found[1]) if found else b""


def _unbased(data: bytes) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        return b""
