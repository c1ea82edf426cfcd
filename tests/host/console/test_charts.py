"""Charts say what was used: their axes fit, and hours without use have no bar."""

from __future__ import annotations

import re

import httpx2
import pytest

from toolcell.host.charts.bars import axis_top
from toolcell.host.console.pages.charts import HOUR, HOURS, charts
from toolcell.tools.spi import UsageHour

from ...support.console.client import Client
from ...support.console.served import Service

NOW = 1_795_858_205.0
"""2026-11-28, 09:30:05 UTC."""

LAST = int(NOW // HOUR) * HOUR


@pytest.mark.promise("D3")
def test_a_chart_has_numbers_dates_and_gaps() -> None:
    usage = [
        UsageHour(LAST, "a", calls=2, usd=0.1, cpu_ms=1_500),
        UsageHour(LAST, "b", calls=1),
        UsageHour(LAST - 2 * HOUR, "a", calls=2),
        UsageHour(LAST - HOURS * HOUR, "a", calls=1_000),
    ]
    calls, refused, cpu, money = charts(usage, NOW)

    assert (calls.total, calls.scale) == ("5 calls", ("4", "2", "0"))
    assert [(bar.at, bar.height) for bar in calls.bars] == [(45, 0.5), (47, 0.75)]
    assert calls.highest == "Sat 28 Nov, 09:00: 3 calls"
    assert [f"{date:%d %H}" for date in calls.dates] == [
        "26 10",
        "26 22",
        "27 10",
        "27 22",
    ]
    assert (refused.total, refused.highest, refused.bars) == ("0 calls", "", ())
    assert (cpu.total, cpu.scale) == ("1.5 s", ("2", "1", "0"))
    assert (money.total, money.scale) == ("0.1 USD", ("0.1", "0.05", "0"))
    assert [bar.height for bar in money.bars] == [1.0]


@pytest.mark.parametrize(
    ("highest", "top"),
    [
        (0, 2),
        (1, 2),
        (3, 4),
        (5, 10),
        (11, 20),
        (21, 40),
        (99, 100),
        (123_456, 200_000),
    ],
)
def test_an_axis_ends_at_a_round_number(highest: float, top: float) -> None:
    assert axis_top(highest, 2) == top


@pytest.mark.promise("D3")
def test_a_bar_is_drawn_as_high_as_its_part_of_the_axis(service: Service) -> None:
    service.call("note", text="hello").result(60)
    cookies, _ = service.signed_in()
    page = httpx2.get(f"{service.url}/agents", cookies=cookies, timeout=60).text
    [drawing] = re.findall(
        r'<svg [^>]*aria-label="Calls by hour">.*?</svg>', page, re.S
    )
    bars = re.findall(
        r'<rect x="(\d+)" y="([\d.]+)" width="8" height="([\d.]+)">', drawing
    )

    # One call on an axis up to 2; the hour may have ended meanwhile.
    [(left, y, height)] = bars
    assert int(left) in (46 * 10 + 1, 47 * 10 + 1)
    assert (float(y), float(height)) == (50, 49)
    assert ":00: 1 calls</title>" in drawing


@pytest.mark.promise("D14")
def test_health_tells_of_the_machine(viewer: Client) -> None:
    words = " ".join(viewer.page("/health").split())

    for phrase in (
        "toolcell 0.",
        "Serves for",
        "over 1, 5 and 15 minutes",
        " free of ",
    ):
        assert phrase in words
    assert "0 run , 0 wait for a place, 0 for a person" in words.replace(
        "run,", "run ,"
    )
