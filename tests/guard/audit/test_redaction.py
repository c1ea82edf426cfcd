"""Secrets are hidden by name, by form and by value; the rest stays as it was."""

from __future__ import annotations

import base64
import json
import secrets
import time
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import SecretBytes, SecretStr

from toolcell.core import InvalidInputError
from toolcell.core.text.printable import COLOUR
from toolcell.guard import Redactor
from toolcell.guard.audit.redaction import ROOM

from ...support.corpora import naughty_strings

redact = Redactor()
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PASSWORD", "db_password", "dbPassword", "pwd", "passphrase"),
        *("secret", "clientSecret", "secret_value", "aws_secret_access_key"),
        *("token", "access_token", "accessToken", "X-Auth-Token", "refresh-token"),
        *("api_key", "apikey", "APIKey", "x-api-key", "private_key", "signingKey"),
        *("Authorization", "Cookie", "Set-Cookie", "credentials", "sessionId"),
        *("pass\x1b[1mword", "\x1b[31mpassword\x1b[m", "api\x1b[;1m\x1b[0m_key"),
        "tok\x1b[1m" + "\x1b[0m" * 500 + "en",
    ],
)
def test_a_value_goes_by_its_name(name: str) -> None:
    value = {
        name: "plain words",
        "pair": [name, "plain words"],
        "header": {"name": name, "value": "plain words"},
        "other": 1,
    }

    assert redact(value) == {
        name: "[redacted]",
        "pair": [name, "[redacted]"],
        "header": {"name": name, "value": "[redacted]"},
        "other": 1,
    }
    assert "plain words" not in redact.json(value)


@pytest.mark.parametrize(
    "name",
    [
        *("tokens", "max_tokens", "token_count", "tokenizer", "key", "keyboard"),
        *("primary_key_column", "author", "compass", "secretary", "session"),
    ],
)
def test_a_name_that_only_looks_alike_stays(name: str) -> None:
    assert redact({name: "plain words"}) == {name: "plain words"}


@pytest.mark.parametrize(
    "secret",
    [
        PEM,
        PEM.replace("RSA ", ""),
        "AKIAIOSFODNN7EXAMPLE",
        "AIza" + "Sy0-_" * 7,
        "ghp_" + "a1B2" * 9,
        "github_pat_11AAAA_" + "x" * 20,
        "glpat-abcdefghij0123456789",
        "hf_" + "abcDEF" * 5,
        "npm_" + "abcDEF" * 6,
        "sk-proj-abcdefghijklmnop0123",
        "sk_live_abcdefghij0123",
        "xoxb-123456789012-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "it is {} indeed", "'{}'", "x\n{}\ny", "({})"]
)
def test_a_value_goes_by_its_form(secret: str, around: str) -> None:
    shown = redact({"text": around.format(secret), "list": [[secret]]})

    assert secret not in json.dumps(shown)
    assert shown["text"] == around.format("[redacted]")  # type: ignore[index,call-overload]


@pytest.mark.promise("E-108")
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("it is ghp_a1B2a1B2a1B2 indeed", "ghp_a1B2a1B2a1B2"),
        ("it is a canary of ours, too", "canary of ours"),
        ("Authorization: Bearer abcDEF123456.", "abcDEF123456."),
        ("--token=abcDEF123456 -v", "abcDEF123456"),
    ],
)
def test_colours_inside_hide_no_secret(text: str, secret: str) -> None:
    """Attack: whoever shows colours leaves their codes out."""
    known = Redactor(secrets=["canary of ours"])
    first = text.index(secret)
    for at in range(first + 1, first + len(secret)):
        coloured = f"\x1b[1m{text[:at]}\x1b[31;4m\x1b[m{text[at:]}\x1b[0m"
        value = {"a": [coloured], coloured: 1}
        spans = known.secrets_in(coloured)
        parts = [COLOUR.sub("", coloured[start:end]) for start, end in spans]

        assert any(secret in part for part in parts), coloured
        shown = [known.text(coloured), known.json(value).replace("\\u001b", "\x1b")]
        shown += [str(known(value)).replace("\\x1b", "\x1b")]
        for each in shown:
            assert secret not in COLOUR.sub("", each), each
            assert "it is" not in text or "it is " in each
    # Other colours stay.
    assert known.text("\x1b[31mred\x1b[0m") == "\x1b[31mred\x1b[0m"


@pytest.mark.promise("E-108")
def test_a_secret_under_many_colours_does_not_show_behind_the_cut() -> None:
    token = "ghp_" + "\x1b[1m".join("a1B2" * 9)
    texts = [f"{token} " * 100]
    for before in (0, 4_000, 4_090, 8_180, 20_000):
        for filler in ("x ", "\x1b[1m"):
            text = (filler * before)[:before] + " " + token
            texts.append(f"{text} {token} {text}")
    for text in texts:
        shown = redact.text(text)
        seen = COLOUR.sub("", shown)
        assert "ghp_" not in seen and "a1B2" not in seen, len(text)
        assert len(shown) < 4_200


def test_an_unfinished_key_goes_to_the_end_of_the_text() -> None:
    assert redact.text(f"it is {PEM[:50]}") == "it is [redacted]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcDEF123456", "Authorization: Bearer [redacted]"),
        ("basic dXNlcjpwYXNz", "basic [redacted]"),
        ("postgres://me:hunter2@db/x", "postgres://me:[redacted]@db/x"),
        ("--password=hunter2 -v", "--password=[redacted] -v"),
        ('{"api_key": "abcd1234"}', '{"api_key": "[redacted]"}'),
        ("PASSWORD : hunter2;", "PASSWORD : [redacted];"),
        ("https://x.org/?token=abcd1234&b=2", "https://x.org/?token=[redacted]&b=2"),
    ],
)
def test_the_words_around_a_secret_stay(text: str, shown: str) -> None:
    # `Authorization:` has the word `Bearer` as its value too.
    assert redact.text(text) in (shown, shown.replace("Bearer", "[redacted]"))


@pytest.mark.parametrize(
    "text",
    [
        "some basic information about bearer bonds",
        "the token count: is large",
        "http://example.org:8080/a@b",
        "a key-value store, sk-learn and a password prompt",
        "2026-11-21T07:00:00Z",
        "3f9c0a1b2c4d5e6f7a8b9c0d1e2f3a4b",
    ],
)
def test_usual_text_is_not_touched(text: str) -> None:
    assert redact.text(text) == text


def test_a_pair_and_a_header_go_by_their_name() -> None:
    value: dict[Any, Any] = {
        "headers": [
            {"name": "X-Api-Key", "value": "abc"},
            ["Cookie", "abc"],
            {"key": "accept", "value": "*/*"},
            ["accept", "*/*"],
        ]
    }

    assert redact(value) == {
        "headers": [
            {"name": "X-Api-Key", "value": "[redacted]"},
            ["Cookie", "[redacted]"],
            {"key": "accept", "value": "*/*"},
            ["accept", "*/*"],
        ]
    }


def test_secret_types_never_show_themselves() -> None:
    value = {"a": SecretStr("abc"), "b": [SecretBytes(b"abc")]}

    for shown in (redact(value), json.loads(redact.json(value))):
        assert "abc" not in repr(shown)


@pytest.mark.promise("R21")
def test_a_known_secret_goes_in_every_spelling() -> None:
    canary = f"canary {secrets.token_hex(8)}"
    known = Redactor(secrets=[SecretStr(canary)])
    raw = canary.encode()
    spellings = [canary, raw.hex(), raw.hex().upper(), quote(canary), canary * 2]
    spellings += [f"x{canary}y", json.dumps({"a": canary})]
    spellings += [base64.b64encode(b"x" * n + raw + b"tail").decode() for n in range(4)]
    spellings += [base64.urlsafe_b64encode(b"?" * n + raw).decode() for n in range(4)]

    for text in spellings:
        for shown in (known.text(text), known.json({"a": {text: [text]}})):
            assert "[redacted]" in shown
            assert canary not in shown
            # What is left of an encoding says nothing but its first and last bytes.
            assert len(shown.replace("[redacted]", "")) < len(text) + 24


def test_a_secret_as_a_key_goes_too() -> None:
    token = "ghp_" + "a1B2" * 9

    assert redact({token: 1, f"{token}x": 2}) == {"[redacted]": 1, "[redacted]'1": 2}


def test_a_long_name_tells_of_a_secret_too() -> None:
    name = "x" * 10_000 + "_password"

    assert "hunter2" not in redact.json({name: "hunter2"})
    same = redact({f"{name}{n:0>300}": n for n in range(10)})
    assert len(same) == 10  # type: ignore[arg-type]


def test_a_secret_across_the_cut_does_not_show_its_start() -> None:
    token = "ghp_" + "a1B2" * 9
    for at in range(4050, 4097):
        shown = redact.text("x" * 100 + " " * (at - 100) + token + " end")
        assert "ghp_" not in shown
    long = redact.text("word " * 10_000)
    assert len(long) < 4200
    assert "characters left out]" in long


def test_a_known_secret_across_the_cut_shows_nothing() -> None:
    words = "correct horse battery staple"
    known = Redactor(secrets=[words])
    for before in range(4096 - len(words) - 2, 4098):
        shown = known.text("x " * (before // 2) + words + " end " * 2_000)
        assert not {"correct", "horse", "battery", "staple"} & {*shown.split()}, before
    # Hidden secrets make room for nothing that was not read.
    assert words not in known.text(f"{words} " * 10_000)


@pytest.mark.promise("E-108")
@pytest.mark.parametrize(
    "code", ["", "\x1b[1m", "\x1b[" + "1;" * 40 + "m"], ids=["plain", "short", "long"]
)
def test_a_known_secret_shows_no_part_where_hidden_keys_make_room(code: str) -> None:
    """Attack: what is hidden before the cut lets what lies at the cut be shown."""
    words = "correct horse battery staple"
    known = Redactor(secrets=[words])
    secret = code.join(words)
    keys = "\x1b[m" + PEM.replace("MIIEow", "MIIEow" * 400) * 2
    end = 2 * 4096 + len(words.encode().hex())
    for at in range(end - len(secret) - 1, end + 1, 1 + len(code) // 4):
        text = (keys + "x " * 5_000)[:at] + secret + " end" * 2_000
        shown = COLOUR.sub("", known.text(text)).rpartition(" [")[0]
        assert shown.startswith("[redacted]x x x"), at
        assert {*shown.replace("[redacted]", "")} == {"x", " "}, at


@pytest.mark.promise("R2")
@pytest.mark.parametrize(
    "large",
    [
        ["token=secret-secret "[:n] * (4096 // n) for n in range(1, 20)] * 50,
        {f"key{n}": "x" * 500 for n in range(9_000)},
        [[n] for n in range(200_000)],
        {"x" * 5_000 + str(n): n for n in range(100)},
    ],
    ids=["long texts", "names", "small values", "long names"],
)
def test_of_a_large_value_so_much_is_read_and_the_rest_counted(large: Any) -> None:
    start = time.thread_time()
    shown = redact(large)
    seconds = time.thread_time() - start

    text = json.dumps(shown)
    assert len(text) < 3 * ROOM
    assert "left out]" in text
    assert seconds < 0.25


def test_odd_values_become_json_of_bounded_size() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    value: dict[Any, Any] = {
        "nan": float("nan"),
        "inf": float("-inf"),
        "big": 10**5000,
        "deep": deep,
        "object": object(),
        ("tuple",): 1,
        "set": {1},
        "bytes": b"\xff",
        "surrogate": "\ud800",
    }
    shown = redact(value)

    assert shown == {
        "nan": "NaN",
        "inf": "-Infinity",
        "big": "[an integer of 16610 bits]",
        "deep": shown["deep"],  # type: ignore[index,call-overload]
        "object": "[object]",
        "[tuple]": 1,
        "set": [1],
        "bytes": "[bytes]",
        "surrogate": "\ud800",
    }
    assert json.loads(redact.json(value)) == shown
    assert "nested too deeply" in redact.json(deep)


@pytest.mark.promise("E-106")
@pytest.mark.corpus
def test_naughty_strings_come_back_as_they_were() -> None:
    for text in naughty_strings():
        shown = redact.json({"text": text})

        assert shown.isascii()
        assert shown.replace("\x7f", "").isprintable()
        assert json.loads(shown) == {"text": redact.text(text)}
        if "[redacted]" not in shown:
            assert json.loads(shown) == {"text": text}


def test_the_text_form_is_the_value_form() -> None:
    values: list[Any] = [
        {"password": "a"},
        {"a": ["x", 1, None, True, 1.5]},
        "x",
        [],
        {},
    ]
    values += [[float("nan"), float("inf")], {"a": float("-inf")}]
    for value in values:
        assert json.loads(redact.json(value)) == redact(value)


def test_a_secret_too_short_to_tell_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="too short"):
        Redactor(secrets=["abc"])


def test_hostile_texts_are_searched_in_linear_time() -> None:
    """Each would take minutes if a form went back over what it has seen."""
    starts = [
        "-----BEGIN PRIVATE KEY-----",
        "://",
        "bearer ",
        "password",
        "eyJaaaaaaaa.",
    ]
    starts += ["token = ", "://a:", "sk-", "AKIA", "a:" * 10, "password   "]
    for start in starts:
        redact.text(start * (4000 // len(start)))
        redact.text(start * 100_000)
