"""The launcher that starts before a command line is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolcell.host.cli.base.head_start import head_start

from ..support.process_tree import children


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        (["run", "a.py", "--backend", "subprocess"], True),
        (["run", "--backend=subprocess", "a.py"], True),
        (["run", "a.py"], True),
        (["run", "a.py", "--image", "python:3.12-slim"], False),
        (["run", "a.py", "--runtime=runsc"], False),
        (["run", "a.py", "--backend", "docker"], False),
        (["run", "subprocess", "--backend", "docker"], False),
        (["doctor", "--image", "a"], True),
        (["bench", "--backend", "subprocess"], False),
        (["--backend", "subprocess"], False),
        ([], False),
    ],
)
def test_a_launcher_starts_where_the_arguments_look_like_it(
    arguments: Sequence[str], starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("toolcell.host.cli.base.head_start._ENGINE", "/none")
    before = children(os.getpid())
    with head_start(arguments):
        started = children(os.getpid()).keys() - before.keys()

    assert len(started) == starts
    assert children(os.getpid()).keys() <= before.keys()


def test_none_starts_where_an_engine_seems_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "docker.sock"
    engine.touch()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("toolcell.host.cli.base.head_start._ENGINE", str(engine))
    before = children(os.getpid())
    with head_start(["run", "a.py"]):
        assert children(os.getpid()).keys() <= before.keys()
    engine.unlink()
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with head_start(["run", "a.py"]):
        assert children(os.getpid()).keys() <= before.keys()
