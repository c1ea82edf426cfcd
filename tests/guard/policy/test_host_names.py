"""A deny rule on a host finds it in every spelling that a look-up takes for it."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolcell.guard.policy.host_names import PIECE
from toolcell.guard.spi import Condition

pytestmark = pytest.mark.promise("A20")

HOSTS = ["strasse.example", "*.evil.test:8443", "127.0.0.1", "[::1]:80"]
DENIED = Condition(mentions_host=HOSTS).judge
SPELLINGS = """
    straße.example STRASSE.EXAMPLE stra\u00adsse.example stras\u200bse.example
    ｓｔｒａｓｓｅ.example strasse。example strasse．example strasse｡example.
    straẞe.example
    ⓢtrasse.example s\u034ftrasse.example stra\ufe0fsse.example stra\u1806sse.example
    https://a.b.strasse.example:443/x https://user@strasse.example/ evil.test
    x.evil.test http%3A%2F%2Fevil%2Etest%2F evil%252etest %65vil.test
    %2525252565vil.test evil.test.. ｅｖｉｌ%E3%80%82test http://%EF%BD%85vil.test
    http://2130706433/ http://0x7f.1/ 0177.0.0.1 127.1 http://[::ffff:127.0.0.1]/
    [::ffff:7f00:1] http://[0:0:0:0:0:0:0:1]/ １２７.0.0.1 http://127。0。0。1
""".split()
OTHERS = """
    street.example notevil.test evil.test.example evil.tests 127.0.0.2 [::2] 1.0.0.127
    100% 50%25 https://example.com/a%20b%C3%A9 naïve.example ß 日本語。 12:30 a:b
""".split()


@pytest.mark.parametrize("text", [*SPELLINGS, "ev\til.test", "http://ev\nil.test/"])
def test_every_spelling_is_a_mention(text: str) -> None:
    assert DENIED(text)
    assert DENIED({"a": [f"fetch {text} now"]})
    assert DENIED({text: 1})


@pytest.mark.parametrize("text", OTHERS)
def test_other_hosts_are_none(text: str) -> None:
    assert not DENIED(text)


@pytest.mark.parametrize(
    "text", ["http://evil%FF.test/", "a\ud800.test", "a%ED%A0%80.x"]
)
def test_what_does_not_normalise_is_a_mention(text: str) -> None:
    assert DENIED(text)


def test_decoding_that_does_not_end_is_a_mention() -> None:
    assert DENIED("%" + "25" * 50 + "41")


@pytest.mark.promise("R41")
@pytest.mark.parametrize("text", SPELLINGS)
def test_a_mention_is_found_wherever_it_stands_in_a_long_text(text: str) -> None:
    for before in range(PIECE - len(text) - 2, PIECE + 2, 5):
        long = f"{'no name, ' * (before // 9)}{'x' * (before % 9)} {text} and"
        assert DENIED(long + " more" * 5_000), before
    assert not DENIED("日本語の文、" * 20_000)
    assert not DENIED("QUJD+/ab" * 20_000)


@pytest.mark.parametrize("letter", ["a", "日", "\u200b", "a\n"])
def test_a_text_that_cannot_be_parted_is_a_mention(letter: str) -> None:
    assert DENIED(letter * (PIECE + 1))
    assert not DENIED(letter * (PIECE // len(letter)))


def test_a_rule_in_ascii_finds_the_name_of_today() -> None:
    assert Condition(mentions_host=["xn--strae-oqa.example"]).judge(
        "https://straße.example/"
    )


HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
ODD = st.text(
    st.sampled_from(
        "sSſßẞtraeTRAEｓⓔª\u00ad\u200b\u200d\u2060\ufe0f.。．｡\u034f\u1806xX"
    ),
    max_size=14,
)


@settings(max_examples=2000, derandomize=True)
@given(st.text(max_size=12) | ODD, st.booleans())
@example("straße", False)
@example("stra\u00adße", True)
def test_whatever_the_look_up_takes_for_a_host_is_a_mention(
    text: str, encoded: bool
) -> None:
    try:
        # What socket.getaddrinfo asks for.
        name = text.encode("idna").decode("ascii").lower().rstrip(".")
    except UnicodeError:
        return
    if not HOST.fullmatch(name):
        return
    written = quote(text, safe="") if encoded else text

    assert Condition(mentions_host=[name]).judge(f"https://{written}/"), (name, text)


@pytest.mark.parametrize(
    "text",
    """
    0xa9fea9fe 0xa9.254.43518 0251.0376.0251.0376 169.16689662 2852039166
    000251.254.43518
    x=169.254.169.254; \\n169.254.169.254 169.254.0xa9fe ::ffff:169.254.169.254
    [::ffff:a9fe:a9fe] at:169.254.169.254.
    """.split(),
)
def test_an_address_is_found_however_it_is_written(text: str) -> None:
    assert Condition(mentions_host=["169.254.169.254"]).judge(text)


@pytest.mark.parametrize(
    "text",
    """
    169.254.169.25 169.254.169.2540 1169.254.169.254 0xa9fea9fe0 28520391660
    169.254.169 0xa9fe ::ffff:169.254.169.25
    """.split(),
)
def test_another_address_is_none(text: str) -> None:
    assert not Condition(mentions_host=["169.254.169.254"]).judge(text)
