"""The words of a server that explain its end show nothing of its environment."""

from __future__ import annotations

import pytest

from toolcell.tools.mcp_client.last_words import LastWords

SECRET = "a-key-of-forty-letters-that-no-error-has"

pytestmark = pytest.mark.promise("door-3")


def test_a_value_between_two_streams_is_hidden() -> None:
    words = LastWords("files", [SECRET])
    words.add(SECRET[:9].encode())
    words.add_line(b"usage: files KEY")
    words.add(SECRET[9:].encode() + b"\n")

    told = words.after("it ended")
    assert "usage: files KEY" in told
    assert "***" in told
    assert SECRET[9:] not in told


def test_the_line_that_tells_the_cause_is_none_that_was_cut() -> None:
    words = LastWords("files", [SECRET], in_cell=True)
    words.add(f"{SECRET} EACCES\n".encode())
    words.add(b"x" * 16_350 + b"\n")

    assert SECRET[-20:] not in words.after("it ended")
