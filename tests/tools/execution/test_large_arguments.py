"""Arguments that are too large to be checked on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from toolcell.tools import JSONSchemaTool
from toolcell.tools.definition.validation import Arguments

from ...support.sample_tools import call, executor

pytestmark = pytest.mark.anyio


class Noting(JSONSchemaTool):
    """Notes the threads in which its arguments are checked."""

    def validate(self, arguments: Mapping[str, Any]) -> Arguments:
        threads.append(threading.current_thread())
        return super().validate(arguments)


threads: list[threading.Thread] = []


@pytest.mark.promise("R58")
async def test_a_stranger_s_schema_reads_large_arguments_beside_the_loop() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array"}}}
    noting = Noting(lambda arguments: len(arguments["x"]), name="t", parameters=schema)
    ours = executor(noting)
    threads.clear()

    small = await ours.call(call("t", "1", x=[1]))
    large = await ours.call(call("t", "2", x=[1] * 10_000))
    wrong = await ours.call(call("t", "3", x="x" * 100_000))

    assert (small.content, large.content) == (1, 10_000)
    assert wrong.error is not None and "wrong type" in wrong.error.message
    beside = [thread is not threading.current_thread() for thread in threads]
    assert beside == [False, True, True]
