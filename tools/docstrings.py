"""Reads what a docstring says of a function: Google, NumPy and Sphinx styles."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

import griffe

# Google sections that no blank line comes before, as they are often written.
_HEADER = re.compile(
    r"(?<=\S)\n(?=(?:Args|Arguments|Params|Parameters|Returns|Raises|Yields|Examples?)"
    r":[ \t]*\n[ \t])"
)
_QUIET: Any = {style: {"warnings": False} for style in ("google", "numpy", "sphinx")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documentation:
    """What a docstring says to a model."""

    summary: str = ""
    """The first paragraph, on one line."""

    parameters: dict[str, str] = field(default_factory=dict)
    """Descriptions by parameter name, each on one line."""


def read_docstring(text: str | None) -> Documentation:
    """Return the summary and the parameters that a docstring describes."""
    if not text:
        return Documentation()
    clean = _HEADER.sub("\n\n", inspect.cleandoc(text))
    summary = ""
    parameters: dict[str, str] = {}
    for section in griffe.parse_auto(
        griffe.Docstring(clean), default="google", per_style_options=_QUIET
    ):
        if section.kind is griffe.DocstringSectionKind.text and not summary:
            summary = _one_line(section.value.partition("\n\n")[0])
        elif section.kind is griffe.DocstringSectionKind.parameters:
            for item in section.value:
                parameters[item.name.lstrip("*")] = _one_line(item.description)
    return Documentation(summary=summary, parameters=parameters)


def description_of(name: str, docstring: str | None) -> str:
    """Return what a model reads of a function: the summary, or a general word."""
    return read_docstring(docstring).summary or f"The tool {name}."


def _one_line(text: str) -> str:
    return " ".join(text.split())
