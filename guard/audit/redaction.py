"""Hides secrets in values that are written or shown: by name, by form, by value."""

from __future__ import annotations

import base64
import functools
import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from pydantic import JsonValue, SecretBytes, SecretStr
from pydantic_core import to_json

from toolcell.core import InvalidInputError
from toolcell.core.text.printable import COLOUR

HIDDEN = "[redacted]"
"""The text that takes the place of a secret."""

TEXT_CHARACTERS = 4096
"""Longest text in characters. When it is reached, the rest is left out and counted."""

DEPTH = 32
"""Deepest nesting. When it is reached, a short text replaces deeper values."""

ROOM = 65_536
"""Characters of all texts and names of a value, to which each value in it adds 8. When
it is reached the rest is left out and counted, so that to read the largest call takes
no longer than to read this much."""

LEFT_OUT = "(left out)"
"""The name under which a mapping tells how many members are left out."""

_ESCAPE = "\x1b"
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]*)?\Z")  # a code of a colour
_VALUE_ROOM = 8
_SECRET_CHARACTERS = 6
_NAME_CHARACTERS = 256
_INTEGER_BITS = 1024
_COMMON = 2**31
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
_SECRET_WORDS = frozenset(
    "authorization authorisation cookie cookies credential credentials passphrase "
    "passwd password passwords pwd secret secrets apikey apikeys".split()
)
# At the end only: `max_tokens`, `token_count` and `key_column` are no secrets.
_SECRET_ENDS = (
    "token",
    "apikey",
    "accesskey",
    "encryptionkey",
    "masterkey",
    "privatekey",
    "sessionid",
    "sharedkey",
    "signingkey",
)
# Words that a form cannot do without, in lower case, and the form. The words keep
# most texts from the slower search. Each form is linear: a quantifier without a bound
# ends its match, or begins where no other match of the form can begin.
_FORMS = tuple(
    (words.split(), re.compile(form))
    for words, form in (
        (
            "private",
            r"-----BEGIN[A-Z ]{0,32}PRIVATE KEY-----"
            r"(?:[^-]|-(?!----END))*(?:-----END[A-Z ]{0,32}KEY-----)?",
        ),
        (
            "bearer basic",  # and not `basic information`
            r"\b(?i:bearer|basic)\s{1,8}"
            r"(?P<secret>(?=[\w.~+/-]{1,256}[0-9=A-Z])[\w.~+/=-]{8,})",
        ),
        ("://", r"://[^\s/:@]{0,256}:(?P<secret>[^\s/@]{1,256})@"),
        (
            "pass pwd secret token key authorization",
            r"(?i:passwd|password|passphrase|pwd|secret|token|(?:api|access|private)"
            r"[_-]?key|authorization)[\"']?\s{0,8}[:=]\s{0,8}[\"']?"
            r"(?P<secret>[^\s\"',;&]{4,})",
        ),
        (
            # From the start of a run of letters, so that each is read once. The group
            # is atomic: before Python 3.11.5 a possessive one finds nothing.
            "eyj",
            r"(?<![\w-])(?>(?:(?!\beyJ)[\w-])*)"
            r"(?P<secret>eyJ[\w-]{8,}+\.[\w-]{4,}+(?:\.[\w-]*+)?)",
        ),
        ("akia asia", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
        ("aiza", r"\bAIza[\w-]{35}"),
        (
            "ghp_ gho_ ghs_ ghu_ ghr_ github_pat_ hf_ npm_ k_live_ k_test_",
            r"\b(?:gh[opsur]|github_pat|hf|npm|[rs]k_live|[rs]k_test)_\w{10,}",
        ),
        ("glpat- pypi- sk- xox", r"\b(?:glpat|pypi|sk|xox[abeoprs])-[\w-]{10,}"),
    )
)
_SHORTEST_FORM = 14
_WORDS_OF_SECRETS = sorted(
    ({word for words, _ in _FORMS for word in words} - {"authorization"})
    | {"auth", "cookie", "credential", "session"}
)
_PLAIN_WORDS = tuple(word for word in _WORDS_OF_SECRETS if not {*word} & {"_", "-"})
_SIGNED_WORDS = tuple(
    (sign, tuple(word for word in _WORDS_OF_SECRETS if sign in word)) for sign in "_-"
)
_to_json = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False
).encode


class _Room:
    """The room that is left for a value."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ROOM

    def take(self, characters: int) -> bool:
        """Return whether there is room for a value of so many characters."""
        self.left -= _VALUE_ROOM + characters
        return self.left >= 0


class Redactor:
    """Returns values as JSON without the secrets in them.

    A value is hidden when its name suggests a secret (`password`, `api_key`,
    `accessToken`, a header's name beside its `value`), when it has the form of one
    (private keys, bearer tokens, the usual vendors' keys, a password in a URL), when
    it is a `SecretStr` or `SecretBytes`, or when it is one of `secrets`. No list of
    forms is complete: give the secrets that you know. Of a large value a part is left
    out, see `TEXT_CHARACTERS`, `DEPTH` and `ROOM`.

    Args:
        secrets: Values to hide wherever they stand, also in base64, hexadecimal and
            percent-encoding. At least 6 characters each; default none.

    Raises:
        InvalidInputError: A secret has fewer than 6 characters.
    """

    def __init__(self, *, secrets: Iterable[str | SecretStr] = ()) -> None:
        spellings: set[str] = set()
        for secret in secrets:
            text = secret if isinstance(secret, str) else secret.get_secret_value()
            if len(text) < _SECRET_CHARACTERS:
                raise InvalidInputError(
                    "a secret to redact is too short",
                    hint=f"give at least {_SECRET_CHARACTERS} characters",
                )
            spellings |= _spellings(text)
        # The longest first: an alternation takes the first that fits.
        longest = sorted(spellings, key=lambda text: (-len(text), text))
        self._known = re.compile("|".join(map(re.escape, longest))) if longest else None
        self._longest = max(map(len, longest), default=0)

    def __call__(self, value: Any) -> JsonValue:
        """Return a copy as JSON, of bounded depth and size, with secrets hidden."""
        if type(value) is int and -_COMMON < value < _COMMON:
            return value
        if type(value) is dict:
            return self._mapping(value, DEPTH - 1, _Room())
        return self._value(value, DEPTH, _Room())

    def json(self, value: Any) -> str:
        """Return the JSON text of `self(value)`, in ASCII and without spaces."""
        try:
            text = to_json(value, inf_nan_mode="strings").decode()
        except (ValueError, RecursionError):
            return _to_json(self(value))
        small = len(text) <= TEXT_CHARACTERS and text.isascii()
        # A text without any word of a secret need not be searched.
        plain = small and "\\u001b" not in text
        if plain and self._known is None and not _may_hold_secrets(text):
            if text.count("{") <= DEPTH and text.count("[") <= DEPTH:
                return text
        return _to_json(self(value))

    def text(self, text: str) -> str:
        """Return text with secrets hidden, at most `TEXT_CHARACTERS` of it."""
        read, omitted = text, 0
        if _ESCAPE in text:
            read, omitted = self._coloured_part(text)
        if len(read) > TEXT_CHARACTERS:
            end = self._end_of_part(read)
            omitted += len(read) - end
            read = read[:end]
        if self._known is not None:
            read = self._known.sub(HIDDEN, read)
        if omitted or len(read) > TEXT_CHARACTERS:
            return _shortened(read, omitted)
        return _without_forms(read)

    def secrets_in(self, text: str) -> list[tuple[int, int]]:
        """Return the start and the end of each secret in a text of any length."""
        spans = self._spans(text)
        if _ESCAPE in text:
            spans += self._coloured_secrets_in(text)
        return _merged(spans)

    def _coloured_part(self, text: str) -> tuple[str, int]:
        """Return the part of a text that is read, without the secrets that are seen
        where colours are not shown as codes, and how many characters are left out."""
        part = text[: 2 * TEXT_CHARACTERS + self._longest]
        spans = self._coloured_secrets_in(part)
        if len(part) == len(text):
            return _hide(part, spans), 0
        # A known secret may go on behind the part: whatever can be its start goes.
        plain, place = _without_colours(_UNFINISHED.sub("", part))
        end = place(max(len(plain) - self._longest, 0))
        spans = [(start, min(stop, end)) for start, stop in spans if start < end]
        return _hide(part[:end], spans), len(text) - end

    def _coloured_secrets_in(self, text: str) -> list[tuple[int, int]]:
        """Return the secrets that are seen where colours are not shown as codes."""
        plain, place = _without_colours(text)
        found = _merged(self._spans(plain))
        return [(place(start), place(end - 1) + 1) for start, end in found]

    def _spans(self, text: str) -> list[tuple[int, int]]:
        found = [] if self._known is None else list(self._known.finditer(text))
        spans = [match.span() for match in found]
        lower = text.lower()
        for words, form in _FORMS:
            if any(word in lower for word in words):
                group = "secret" if "secret" in form.groupindex else 0
                spans += [match.span(group) for match in form.finditer(text)]
        return spans

    def _end_of_part(self, text: str) -> int:
        """Return the end of the part of a text that is read: no secret is parted."""
        if self._known is not None:
            for match in self._known.finditer(text[: TEXT_CHARACTERS + self._longest]):
                if match.end() > TEXT_CHARACTERS:
                    return min(TEXT_CHARACTERS, match.start())
        return TEXT_CHARACTERS

    def _value(self, value: Any, depth: int, room: _Room) -> JsonValue:
        # The frequent types first: this runs for each record.
        kind = type(value)
        if kind is bool or value is None:
            return value  # type: ignore[no-any-return]
        if kind is dict and depth:
            return self._mapping(value, depth - 1, room)
        if isinstance(value, (int, float)):
            return _number(value)
        if isinstance(value, str):
            if not room.take(min(len(value), TEXT_CHARACTERS)):
                return f"[{len(value)} characters left out]"
            return self.text(value)
        if isinstance(value, SecretStr | SecretBytes):
            return HIDDEN
        if depth == 0:
            return "[nested too deeply]"
        if isinstance(value, Mapping):
            return self._mapping(value, depth - 1, room)
        if isinstance(value, list | tuple | set | frozenset):
            return self._sequence(list(value), depth - 1, room)
        return f"[{type(value).__name__}]"

    def _mapping(
        self, values: Mapping[Any, Any], depth: int, room: _Room
    ) -> dict[str, JsonValue]:
        shown: dict[str, JsonValue] = {}
        if "value" in values:
            named = values.get("name", values.get("key"))
            if isinstance(named, str) and is_secret_name(named):
                values = {**values, "value": SecretStr("")}
        for number, (key, value) in enumerate(values.items()):
            name = key if type(key) is str else _name(key)
            if not room.take(min(len(name), TEXT_CHARACTERS)):
                shown[LEFT_OUT] = f"[{len(values) - number} values left out]"
                break
            is_plain = len(name) <= _NAME_CHARACTERS and _ESCAPE not in name
            secret, label = _described(name if is_plain else _end_of_name(name))
            if self._known is not None or not is_plain:
                label = self.text(name)
            while label in shown:
                label = f"{label}'{len(shown)}"
            if secret and value:
                shown[label] = HIDDEN
            elif type(value) is int and -_COMMON < value < _COMMON:
                shown[label] = value
            else:
                shown[label] = self._value(value, depth, room)
        return shown

    def _sequence(self, values: list[Any], depth: int, room: _Room) -> list[JsonValue]:
        if (
            len(values) == 2
            and isinstance(values[0], str)
            and is_secret_name(values[0])
        ):
            return [self.text(values[0]), HIDDEN]
        shown: list[JsonValue] = []
        for number, value in enumerate(values):
            if not room.take(0):
                shown.append(f"[{len(values) - number} values left out]")
                break
            shown.append(self._value(value, depth, room))
        return shown


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in their order, with those that touch as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            start, last = merged.pop()
            end = max(end, last)
        merged.append((start, end))
    return merged


def _hide(text: str, spans: list[tuple[int, int]]) -> str:
    starts = [*(start for start, _ in spans), len(text)]
    ends = [0, *(end for _, end in spans)]
    return HIDDEN.join(text[end:start] for end, start in zip(ends, starts, strict=True))


def _without_colours(text: str) -> tuple[str, Callable[[int], int]]:
    """Return a text without its colours, and what finds a place of it in the text."""
    pieces: list[str] = []
    starts, places = [0], [0]
    for code in COLOUR.finditer(text):
        pieces.append(text[places[-1] : code.start()])
        starts.append(starts[-1] + len(pieces[-1]))
        places.append(code.end())
    pieces.append(text[places[-1] :])

    def place(at: int) -> int:
        piece = bisect_right(starts, at) - 1
        return places[piece] + at - starts[piece]

    return "".join(pieces), place


def _name(key: Any) -> str:
    return str(key) if isinstance(key, str) else f"[{type(key).__name__}]"


def _number(value: float) -> JsonValue:
    if type(value) is int and -_COMMON < value < _COMMON:
        return value
    if isinstance(value, int):
        if value.bit_length() <= _INTEGER_BITS:
            return int(value)
        return f"[an integer of {value.bit_length()} bits]"
    return float(value) if math.isfinite(value) else json.dumps(float(value))


def _may_hold_secrets(text: str) -> bool:
    lower = text.lower()
    for word in _PLAIN_WORDS:
        if word in lower:
            return True
    for sign, words in _SIGNED_WORDS:
        if sign in lower:
            for word in words:
                if word in lower:
                    return True
    return False


def is_secret_name(name: str) -> bool:
    """Return whether a key, an argument or a header of this name holds a secret."""
    return _described(_end_of_name(name))[0]


def _end_of_name(name: str) -> str:
    """Return the part of a name that is judged, as it is seen: without colours."""
    plain = COLOUR.sub("", name) if _ESCAPE in name else name
    return plain[-_NAME_CHARACTERS:]


@functools.lru_cache(maxsize=1024)
def _described(name: str) -> tuple[bool, str]:
    """Return whether a name suggests a secret, and the name without secrets."""
    words = [word.lower() for word in _WORDS.findall(name)]
    joined = "".join(words)
    secret = not _SECRET_WORDS.isdisjoint(words) or joined.endswith(_SECRET_ENDS)
    return secret, _without_forms(name)


def _without_forms(text: str) -> str:
    if len(text) < _SHORTEST_FORM and ":" not in text and "=" not in text:
        return text
    lower = text.lower()
    for words, form in _FORMS:
        for word in words:
            if word in lower:
                text = form.sub(_hidden, text)
                break
    return text


def _shortened(text: str, omitted: int) -> str:
    """Return the begin of a text behind which so many characters are left out."""
    # A cut through a secret would leave a part that has no known form, so the
    # word at the cut is left out as a whole.
    kept = text[:TEXT_CHARACTERS]
    words = kept.rsplit(None, 1)
    kept = words[0] if len(words) == 2 else ""
    omitted += len(text) - len(kept)
    return f"{_without_forms(kept)} [{omitted} characters left out]"


def _hidden(match: re.Match[str]) -> str:
    """Hide the secret of a match and keep the words around it."""
    if "secret" not in match.re.groupindex:
        return HIDDEN
    start, end = (at - match.start() for at in match.span("secret"))
    return match[0][:start] + HIDDEN + match[0][end:]


def _spellings(secret: str) -> set[str]:
    """Return the encodings in which a secret may appear in a text."""
    raw = secret.encode("utf-8", "surrogatepass")
    found = {secret, raw.hex(), raw.hex().upper(), quote(raw), quote(raw, safe="")}
    # Inside a longer base64 text a secret starts at one of three offsets; the
    # characters at its ends mix with its neighbours and are left out.
    for offset in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(bytes(offset) + raw).decode().rstrip("=")
            found.add(text[(0, 2, 3)[offset] : (len(raw) + offset) * 8 // 6])
    return {text for text in found if len(text) >= _SECRET_CHARACTERS}
