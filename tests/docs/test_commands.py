"""Commands that the documents name exist, with their options; nothing is run."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from toolcell.host.cli.commands import make_app

from ..support.paths import ROOT, documents

_NAMED = re.compile(r"(?:`|\$ |&& |bin/)toolcell ([a-z][^`\n|<>#&]*)")


def lacking(words: list[str], command: Any) -> str:
    """Return the first word that names no command or option; empty if all do."""
    while words and hasattr(command, "commands"):
        name, *words = words
        if name not in command.commands:
            return name
        command = command.commands[name]
    known = {
        each for one in command.params for each in [*one.opts, *one.secondary_opts]
    }
    ours = words[: words.index("--")] if "--" in words else words
    named = [each.partition("=")[0] for each in ours if each.startswith("--")]
    return next((each for each in named if each not in known), "")


def test_commands_in_documents_exist() -> None:
    command = typer.main.get_command(make_app())
    found: dict[str, str] = {}
    for path in documents():
        text = re.sub(r" *\\\n *", " ", path.read_text())
        for words in _NAMED.findall(text):
            found[f"{path.relative_to(ROOT)}: toolcell {words}"] = words

    assert len(found) > 150
    assert [
        where for where, each in found.items() if lacking(each.split(), command)
    ] == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("run a.py --json", ""),
        ("run a.py -- --none", ""),
        ("run a.py --none", "--none"),
        ("tools pin --yes", ""),
        ("tools unpin", "unpin"),
    ],
)
def test_what_a_command_lacks_is_found(line: str, word: str) -> None:
    command = typer.main.get_command(make_app())

    assert lacking(line.split(), command) == word
