"""Plots: a bar is as long as the power of ten of its figure."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from toolcell.host.charts.plot import Row, plot

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*rows: Row) -> ElementTree.Element:
    return ElementTree.fromstring(plot("Start", "ms", "a machine", rows))


def bars(svg: ElementTree.Element) -> list[tuple[str, float, float]]:
    """Return the kind of each bar, its place and its length."""
    return [
        (group.attrib["class"], float(bar.attrib["x"]), float(bar.attrib["height"]))
        for group in svg.iter(f"{SVG}g")
        for bar in group.iter(f"{SVG}rect")
    ]


def words(svg: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in svg.iter(f"{SVG}text")]


def test_bars_are_as_long_as_their_powers_of_ten() -> None:
    svg = drawn(
        Row(name="a", ours=True, figure=(9, 10, 11)),
        Row(name="b", ours=False, note="keeps no state"),
        Row(name="c", ours=False, figure=(1000, 1000, 1000)),
    )

    # The axis goes from 1 to 1,000.
    assert bars(svg) == [("ours", 1, 32.67), ("others", 21, 98)]
    assert words(svg) == [
        *("Start (ms)", "1", "10", "100", "1,000"),
        *("a", "10  (9 to 11)", "b", "keeps no state", "c", "1,000  (1,000 to 1,000)"),
        "a machine",
    ]


def test_quartiles_are_drawn_on_the_bar() -> None:
    svg = drawn(Row(name="a", ours=True, figure=(0.1, 1, 10)))

    # The axis begins a power of ten below, at 0.01.
    [spread] = [each for each in svg.iter(f"{SVG}path") if "class" in each.attrib]
    left, right = re.fullmatch(r"M(\S+) 56H(\S+)", spread.attrib["d"]).groups()  # type: ignore[union-attr]
    assert (float(left), float(right)) == (423.3, 690)


def test_names_of_any_origin_are_text() -> None:
    name = "</text><script>alert(1)</script>&"
    svg = drawn(
        Row(name=name, ours=False, figure=(1, 1, 1)),
        Row(name="b", ours=False, note=name),
    )

    assert list(svg.iter(f"{SVG}script")) == []
    assert words(svg).count(name) == 2


def test_nothing_measured_is_a_plot_as_well() -> None:
    svg = drawn(Row(name="a", ours=False, note="uv is not installed"))

    assert bars(svg) == []
    assert "uv is not installed" in words(svg)
