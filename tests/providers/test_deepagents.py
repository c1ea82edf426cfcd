"""LangChain's standard tests of sandboxes hold, and a deep agent works in a cell."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .environment import BACKENDS, HERE, run_suite, suite_config


@pytest.mark.full
@pytest.mark.timeout(400)
@BACKENDS
def test_their_standard_tests_hold(row: Any) -> None:
    printed = run_suite(
        HERE / "deepagents_suite.py",
        suite_config(row),
        "--noconftest",
        *("-o", "asyncio_mode=auto"),
    )

    assert re.search(r"^86 passed", printed, re.MULTILINE), printed[-2000:]
