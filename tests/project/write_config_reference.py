"""Writes docs/configuration.md from the models of the configuration.

.venv/bin/python tests/project/write_config_reference.py
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from toolcell.guard import AgentPolicy, Budget
from toolcell.guard.spi import Condition, RateLimit, Rule
from toolcell.host import HostConfig
from toolcell.sandbox import Limits, Mount
from toolcell.sandbox.config.settings import LIMITS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
FIRST_HEADING = "## Top level"
OF_POLICIES: dict[type[BaseModel], str] = {
    Rule: "Rules of a policy",
    Condition: "Conditions of a rule",
    RateLimit: "Rate limits of a policy",
    Budget: "Budgets of a policy",
}
"""Parts that occur in several places, each with its heading."""

_ELSEWHERE: dict[type[BaseModel], str] = {
    Limits: "sandbox.limits",
    Mount: "sandbox.mounts",
}
"""Parts that are described once, where they first occur."""


def render() -> str:
    """Return the page: what people wrote above the first table, and the tables."""
    introduction = PAGE.read_text().partition(FIRST_HEADING)[0]
    return introduction + "\n".join(_section(FIRST_HEADING, "", HostConfig)) + "\n"


def _section(title: str, name: str, model: type[BaseModel]) -> list[str]:
    """Return the part on a model and on the models in it."""
    lines = [title, "", *_about(model), "| key | default | |", "|---|---|---|"]
    inner: list[str] = []
    docs = _docs_of(model)
    for key, field in model.model_fields.items():
        child = _model_of(field.annotation)
        below = f"{name}.{key}" if name else key
        about = docs[key]
        if child in OF_POLICIES:
            about += f" See [{OF_POLICIES[child].lower()}](#{_anchor(child)})."
        elif child in _ELSEWHERE and below != _ELSEWHERE[child]:
            about += f" See `{_header(_ELSEWHERE[child])}`."
        elif child is not None:
            about += f" See `{_header(below)}`."
            inner += ["", *_section(f"## {_header(below)}", below, child)]
        if model is Limits:
            about += _holder(key)
        if child is AgentPolicy:
            for part, heading in OF_POLICIES.items():
                inner += ["", *_section(f"## {heading}", "", part)]
        lines.append(f"| `{key}` | {_default(field)} | {about} |")
    return [*lines, *inner]


def _holder(name: str) -> str:
    """Return what holds a limit, and whether cells are made with it."""
    rule = LIMITS[name]
    held = [*(["cgroup"] if rule.in_cgroup else []), *filter(None, [rule.enforcer])]
    return (f" Held by: {', else '.join(held)}." if held else "") + (
        " Of the cell, not of a single run in it." if rule.of_cell else ""
    )


def _anchor(part: type[BaseModel]) -> str:
    return OF_POLICIES[part].lower().replace(" ", "-")


def _header(name: str) -> str:
    for table in ("tools.mcp", "tools.openapi"):
        if f"{name}.".startswith(f"{table}."):
            return f"[{table}.NAME{name.removeprefix(table)}]"
    lists = ("policies", "sandbox.mounts", "webhooks")
    return f"[[{name}]]" if name in lists else f"[{name}]"


def _about(model: type[BaseModel]) -> list[str]:
    """Return what a model is; of a policy and its parts all that there is to say."""
    parts = inspect.cleandoc(model.__doc__ or "").split("\n\n")
    is_whole = model is AgentPolicy or model in OF_POLICIES
    wanted = parts if is_whole else parts[:1]
    return [" ".join(wanted).replace("\n", " "), ""]


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel) or value in ((), {}):
        return "empty" if not isinstance(value, BaseModel) else "its defaults"
    if value is None:
        return "none"
    return f"`{json.dumps(value, default=str)}`"


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_of(arg) for arg in get_args(annotation))
    return next((each for each in found if each is not None), None)


def _docs_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the text that follows each field in the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = dict.fromkeys(model.model_fields, "")
    for field, after in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
            if isinstance(after.value, ast.Constant):
                text = inspect.cleandoc(str(after.value.value)).replace("\n", " ")
                docs[ast.unparse(field.target)] = text.replace("|", "\\|")
    return docs


if __name__ == "__main__":
    PAGE.write_text(render())
