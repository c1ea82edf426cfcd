"""Runs commands in this process, each in a folder of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from toolcell.host import main

from ...conftest import apart


class Done(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.count("\n") == 1, "one line of JSON and nothing else"
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Runs commands in a folder of their own; the cells are of the subprocess kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLCELL__SANDBOX__BACKEND", "subprocess")

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["toolcell", *arguments])
        with pytest.raises(SystemExit) as caught:
            apart(main)
        code = caught.value.code
        assert code is None or isinstance(code, int)
        captured = capsys.readouterr()
        return Done(code or 0, captured.out, captured.err)

    return run
