"""Docstrings: descriptions reach the schema in three styles."""

from __future__ import annotations

import logging
from typing import Annotated

import pytest
from pydantic import Field

from toolcell.tools import FunctionTool, to_mcp, tool

GOOGLE = """Book a room
    in a city.

    Longer text: with a colon.

    Args:
        city: Where to: any city,
            or a village.
        nights (int): How many.

    Returns:
        nights: Not a parameter.

    Raises:
        ValueError: Not one either.
    """
GOOGLE_TIGHT = """Book a room in a city.
    Args:
        city: Where to: any city, or a village.
        nights (int, optional): How many.
    Returns:
        A word.
    """
NUMPY = """
    Book a room in a city.

    Parameters
    ----------
    city : str
        Where to: any city,
        or a village.
    nights : int, optional
        How many.

    Returns
    -------
    nights
        Not a parameter.
    """
SPHINX = """Book a room in a city.

    :param city: Where to: any city,
        or a village.
    :type city: str
    :param int nights: How many.
    :returns: Not a parameter.
    """
SPACED = (
    "Book a room in a city.\n\nArgs:   \n    city: Where to: any city, or a village.\n"
)
SPACED += "    nights: How many.\n\nReturns:  \n    nights: Not a parameter.\n"


def documented(text: str | None) -> FunctionTool[[str, int], str]:
    def book(city: str, nights: int = 1) -> str:
        return city

    book.__doc__ = text
    return tool(book)


@pytest.mark.promise("LT-48", "RL-08", "OR-12", "RO-05", "A-09", "GA-23")
@pytest.mark.parametrize(
    "text",
    [GOOGLE, GOOGLE_TIGHT, NUMPY, SPHINX, SPACED],
    ids=["google", "google-tight", "numpy", "sphinx", "spaces"],
)
def test_three_styles_are_read(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """LT-48, RL-08, OR-12, RO-05, A-09, GA-23: several lines, colons, no phantoms."""
    caplog.set_level(logging.DEBUG)
    made = documented(text)
    properties = made.parameters["properties"]

    assert made.description == "Book a room in a city."
    assert properties == {
        "city": {
            "description": "Where to: any city, or a village.",
            "type": "string",
        },
        "nights": {"default": 1, "description": "How many.", "type": "integer"},
    }
    assert caplog.records == []


@pytest.mark.promise("LT-47")
@pytest.mark.parametrize("text", [None, "", "   \n "])
def test_without_a_summary_the_description_is_general(text: str | None) -> None:
    made = documented(text)

    assert made.description == "The tool book."
    assert "there is no description" in made.remarks()


def test_a_description_at_the_annotation_wins() -> None:
    @tool
    def f(a: Annotated[int, Field(description="Here.")], b: int = 1) -> int:
        """F.

        Args:
            a: There.
            b: Only there.
            c: Of no parameter.
        """
        return a

    properties = f.parameters["properties"]
    assert properties["a"]["description"] == "Here."
    assert properties["b"]["description"] == "Only there."
    assert set(properties) == {"a", "b"}


def test_hostile_docstrings_stay_text() -> None:
    text = "Add.\n\nArgs:\n    city: %s {0} </tool> \x1b[31m\n" + "    x" * 10_000
    made = documented(text)

    assert made.parameters["properties"]["city"]["description"].startswith("%s {0}")


EXAMPLES = """Book a room.

    Examples:
        >>> book("Rome", nights=2)
        'Rome'
        >>> await shop.book(city="Bonn")
        >>> book(nights=2)
        >>> book(city())
        >>> other("Rome")
        >>> book("Rome"
    """


@pytest.mark.promise("GA-23")
def test_examples_are_read_if_they_are_valid() -> None:
    made = documented(EXAMPLES)
    expected = [{"city": "Rome", "nights": 2}, {"city": "Bonn"}]

    assert list(made.example_calls()) == expected
    assert to_mcp(made)["inputSchema"]["examples"] == expected
    given = FunctionTool(made.function, examples=[{"city": "Graz"}])
    assert list(given.example_calls()) == [{"city": "Graz"}]
