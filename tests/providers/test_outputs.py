"""Outputs of programs reach frameworks as their own types, or as text."""

from __future__ import annotations

from .environment import HERE, run


def test_pictures_are_content_of_frameworks_that_have_it() -> None:
    printed = run(str(HERE / "outputs_check.py"), timeout=280)

    texts = ["**text**", "[picture 1: image/png]"]
    assert printed.splitlines() == [
        f"pydantic-ai: {texts} image/png b'PNG'",
        f"smolagents: {['printed', *texts]}",
    ]
