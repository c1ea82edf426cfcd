"""What is put off to slower runs exists, and leaves no attack without a test."""

from __future__ import annotations

import ast

import pytest

from ..support.paths import ROOT
from ..support.promises import named_by_tests
from ..support.tiers import listed

pytestmark = pytest.mark.lint


@pytest.mark.parametrize("run", ["slow", "full"])
def test_every_listed_test_exists(run: str) -> None:
    gone = []
    for name in listed(run):
        path, _, test = name.partition("::")
        if not (ROOT / path).exists():
            gone.append(name)
        elif test:
            body = ast.parse((ROOT / path).read_text()).body
            names = {getattr(node, "name", "") for node in body}
            gone += [name] if test.partition("[")[0] not in names else []
    assert gone == []


def test_every_attack_is_tried_for_each_change() -> None:
    """Only 121, a corpus of calls, and 140, many runs, take more than is quick."""
    put_off = [
        id_
        for id_, tests in named_by_tests().items()
        if id_.startswith("E-") and all(is_slow(test) for test in tests)
    ]
    assert sorted(put_off) == ["E-121", "E-140"]


def is_slow(test: str) -> bool:
    path = test.partition("::")[0]
    parents = {path.rsplit("/", n)[0] for n in range(path.count("/") + 1)}
    return bool({test, *parents} & (listed("slow") | listed("full")))
