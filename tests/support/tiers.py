"""Which tests belong to which run, and what the end of a run says.

`slow.txt` beside this file lists the tests that take more than a second, those that
start servers of other projects, and those that want chance to show a fault; `full.txt`
lists long ones that try much the same as others once more. They have no marks of their
own, so that the lists can be measured anew: docs/testing.md.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import pytest

from .paths import ROOT

SHOWN = 8
"""Reasons of skipped tests that a run names."""

FOR_EACH_CHANGE = (
    "security/",
    "sandbox/network/test_guarded_networks",
    "sandbox/test_statuses",
)
"""Paths of tests that CI runs on gVisor, a cluster and confined cells, too.

Their other tests belong to the run `full`.
"""


@functools.cache
def listed(run: str) -> frozenset[str]:
    """Return what the list of a run names: folders, files, functions and items."""
    names = Path(__file__).with_name(f"{run}.txt").read_text()
    return frozenset(line for line in names.split("\n") if line)


def mark_listed(item: pytest.Item) -> None:
    """Give a listed test its mark, unless it belongs to a slower run."""
    for run, slower in (("full", ()), ("slow", ("docker", "full"))):
        if _is_listed(item, run) and not any(map(item.get_closest_marker, slower)):
            item.add_marker(run)


def _is_listed(item: pytest.Item, run: str) -> bool:
    path, put_off = _of_file(item.path, run)
    names = {item.name, getattr(item, "originalname", item.name)}
    return put_off or bool({f"{path}::{name}" for name in names} & listed(run))


@functools.cache
def _of_file(file: Path, run: str) -> tuple[str, bool]:
    """Return the path of a file as a list has it, and True if all of it is there."""
    path = file.relative_to(ROOT)
    return str(path), bool({*map(str, (path, *path.parents))} & listed(run))


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
