"""Which tests belong to which run, and what the end of a run says.

`slow.txt` beside this file lists the tests that take more than a second, those that
start servers of other projects, and those that want chance to show a fault. They have
no marks of their own, so that the list can be measured anew: docs/testing.md.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import pytest

from .paths import ROOT

SLOW = Path(__file__).with_name("slow.txt")
SHOWN = 8
"""Reasons of skipped tests that a run names."""

ON_GVISOR = (
    "security/",
    "sandbox/test_statuses",
)
"""Paths of tests that run on gVisor in CI. Others on it belong to the run `full`."""


@functools.cache
def slow_tests() -> frozenset[str]:
    """Return the listed folders, files, functions and items, by their paths."""
    return frozenset(line for line in SLOW.read_text().split("\n") if line)


def mark_slow(item: pytest.Item) -> None:
    """Give the mark `slow` to a listed test, unless it belongs to a slower run."""
    if any(item.iter_markers("docker")) or any(item.iter_markers("full")):
        return
    path, put_off = _of_file(item.path)
    names = {item.name, getattr(item, "originalname", item.name)}
    if put_off or {f"{path}::{name}" for name in names} & slow_tests():
        item.add_marker("slow")


@functools.cache
def _of_file(file: Path) -> tuple[str, bool]:
    """Return the path of a file as the list has it, and True if all of it is there."""
    path = file.relative_to(ROOT)
    return str(path), bool({*map(str, (path, *path.parents))} & slow_tests())


def tell_skipped(reporter: pytest.TerminalReporter) -> None:
    """Say how many tests were skipped and why, the most frequent reasons first."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ").partition("\n")[0]
        for report in reporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if not reasons:
        return
    reporter.section("skipped")
    for reason, count in reasons.most_common(SHOWN):
        reporter.write_line(f"{count:5}  {reason[:100]}")
    if more := sum(count for _, count in reasons.most_common()[SHOWN:]):
        reporter.write_line(f"{more:5}  for other reasons; `-rs` names all")
