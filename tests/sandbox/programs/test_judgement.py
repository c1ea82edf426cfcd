"""Sources of strangers are judged without keeping the host's loop."""

from __future__ import annotations

import importlib
import time

import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import CodePolicy, Limits
from toolcell.sandbox.client.types import Program

pytestmark = pytest.mark.anyio
code_policy = importlib.import_module("toolcell.sandbox.programs.code_policy")
judgement = importlib.import_module("toolcell.sandbox.programs.judgement")

PADDING = "x = 1\n" * judgement.SMALL_CHARACTERS


def program(source: str, *, restricted: bool = False) -> Program:
    imports = code_policy.LAST_RESORT_IMPORTS if restricted else None
    return Program(
        code=source.encode(),
        source=source,
        language="python",
        inputs=b"",
        limits=Limits(),
        restricted_imports=imports,
    )


@pytest.mark.promise("R63")
async def test_a_source_that_is_slow_to_parse_costs_the_loop_nothing() -> None:
    slow = program("f'" + "{a}" * 20_000 + "'\nopen")
    before = time.thread_time()
    judged = await judgement.judge(slow, CodePolicy())

    assert time.thread_time() - before < 0.3
    assert judged.refused == ("line 2: the name 'open' is not allowed",)


@pytest.mark.promise("R63")
async def test_a_source_that_cannot_be_judged_in_time_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judgement, "JUDGE_SECONDS", 1)
    endless = program("f'" + "{a}" * 300_000 + "'")
    judged = await judgement.judge(endless, CodePolicy())

    assert "too much time" in judged.refused[0]


async def test_large_sources_are_judged_as_small_ones() -> None:
    source = f"import os\n{PADDING}import json\njson\nopen\n"
    policy = CodePolicy(imports=("json",))
    judged = await judgement.judge(program(source), policy)
    last = await judgement.judge(program(source, restricted=True), None)
    fine = await judgement.judge(program(PADDING, restricted=True), policy)

    assert judged.refused == code_policy.find_violations(source, policy)
    assert last.refused == code_policy.compile_restricted(source).reasons != ()
    assert (fine.refused, fine.code) == (
        (),
        code_policy.compile_restricted(PADDING).code,
    )
    with pytest.raises(InvalidInputError, match="compiled"):
        await judgement.judge(program("-" * 100_000 + "1", restricted=True), None)
