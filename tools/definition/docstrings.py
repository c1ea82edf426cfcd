"""Reads the docstring of a function, in Google, NumPy or Sphinx style."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import griffe

# Google sections that no blank line comes before, as they are often written.
_HEADER = re.compile(
    r"(?<=\S)\n(?=(?:Args|Arguments|Params|Parameters|Returns|Raises|Yields|Examples?)"
    r":[ \t]*\n[ \t])"
)
_PROMPT = re.compile(r"^\s*>>> (.+)$", re.M)
_QUIET: Any = {style: {"warnings": False} for style in ("google", "numpy", "sphinx")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documentation:
    """The parts of a docstring that a model reads."""

    summary: str = ""
    """The first paragraph, on one line."""

    parameters: dict[str, str] = field(default_factory=dict)
    """Descriptions by parameter name, each on one line."""

    examples: tuple[str, ...] = ()
    """Expressions that stand behind `>>>` in a section of examples."""


def read_docstring(text: str | None) -> Documentation:
    """Return the summary and the parameters that a docstring describes."""
    if not text:
        return Documentation()
    clean = _HEADER.sub("\n\n", inspect.cleandoc(text))
    summary = ""
    parameters: dict[str, str] = {}
    examples: list[str] = []
    for section in griffe.parse_auto(
        griffe.Docstring(clean), default="google", per_style_options=_QUIET
    ):
        if section.kind is griffe.DocstringSectionKind.text and not summary:
            summary = _one_line(section.value.partition("\n\n")[0])
        elif section.kind is griffe.DocstringSectionKind.parameters:
            for item in section.value:
                parameters[item.name.lstrip("*")] = _one_line(item.description)
        elif section.kind is griffe.DocstringSectionKind.examples:
            for _, shown in section.value:
                examples += _PROMPT.findall(shown)
    return Documentation(
        summary=summary, parameters=parameters, examples=tuple(examples)
    )


def read_call(
    expression: str, function: str, parameters: Sequence[str]
) -> dict[str, Any] | None:
    """Return the arguments of a call that is written with literals, by name; else None.

    Args:
        expression: Such as `add(1, b=2)` or `await shop.sell(3)`.
        function: The name of the function that has to be called.
        parameters: Its parameters, in order.
    """
    try:
        call = ast.parse(expression.removeprefix("await "), mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        if ast.unparse(call.func).rpartition(".")[2] != function:
            return None
        first = dict(zip(parameters, map(ast.literal_eval, call.args), strict=False))
        named = {
            str(keyword.arg): ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (SyntaxError, ValueError):
        return None
    return first | named


def description_of(name: str, docstring: str | None) -> str:
    """Return the description for a model: the summary, or a general sentence."""
    return read_docstring(docstring).summary or f"The tool {name}."


def _one_line(text: str) -> str:
    return " ".join(text.split())
