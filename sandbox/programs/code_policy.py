"""Static checks of Python programs: their imports and names, with line numbers.

RestrictedPython compiles the source. Seven of its advisories are about ways out at run
time, so it is no security boundary here: it answers early in front of a cell, and it is
the last resort where the operating system offers no isolation at all.
"""

from __future__ import annotations

import ast
import marshal
from typing import NamedTuple

from toolcell.core import InvalidInputError

from ..cell.notebook.cells import commands as commands_of
from ..cell.notebook.cells import python_of
from ..cell.wire.contract import CELL_END, FILE_NAME
from ..config.settings import CodePolicy

LAST_RESORT_IMPORTS = (
    "bisect",
    "cmath",
    "collections.abc",
    "datetime",
    "decimal",
    "fractions",
    "heapq",
    "itertools",
    "json",
    "math",
    "re",
    "statistics",
)
"""Modules that `process` isolation may import: none leads to a system call. Each is
meant alone: `json.tool`, below `json`, has pathlib's `Path`."""

_MAX_REASONS = 20


def find_violations(
    source: str, policy: CodePolicy, *, exact: bool = False
) -> tuple[str, ...]:
    """Return the reasons why a policy refuses a source, each with its line.

    They are empty if it does not. Nothing of the source is run.

    Args:
        source: The source.
        policy: The policy.
        exact: True if an allowed module does not stand for those below it.
    """
    found: list[tuple[int, str]] = []
    before = 0
    for cell in source.split(CELL_END):
        tree, commands = _read(cell)
        for line, name in commands:
            found.append((before + line, f"the command {name!r} is not allowed"))
        for node in ast.walk(tree):
            for line, reason in _violations(node, policy, exact):
                found.append((before + line, reason))
        before += cell.count("\n") + 1
    found.sort()
    return tuple(f"line {line}: {reason}" for line, reason in found[:_MAX_REASONS])


def _read(cell: str) -> tuple[ast.AST, list[tuple[int, str]]]:
    """Return the tree of a cell, and its commands as a notebook's, each with its line.

    Commands hide Python from this check, or run other programs.
    """
    try:
        return ast.parse(cell), []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    commands = [(line, each.kind + each.name) for line, each in commands_of(cell)]
    try:
        return ast.parse(python_of(cell)), commands
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # No matter of policy: the cell reports it as an error of the program.
        return ast.Module([], []), commands


def _violations(
    node: ast.AST, policy: CodePolicy, exact: bool
) -> list[tuple[int, str]]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = ["." * node.level + (node.module or "")]
    elif isinstance(node, ast.Name) and node.id in policy.denied_names:
        return [(node.lineno, f"the name {node.id!r} is not allowed")]
    elif isinstance(node, ast.Attribute) and node.attr in policy.denied_names:
        return [(node.lineno, f"the attribute {node.attr!r} is not allowed")]
    else:
        return []
    return [
        (node.lineno, f"import of {name!r} is not allowed")
        for name in names
        if name not in policy.imports and (exact or not _is_below(name, policy.imports))
    ]


def _is_below(name: str, modules: tuple[str, ...]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)


class Restricted(NamedTuple):
    """A program compiled for `process` isolation, or the reasons to refuse it."""

    code: bytes
    reasons: tuple[str, ...]


def compile_restricted(source: str) -> Restricted:
    """Compile a source with RestrictedPython's guards in place of bare access.

    Raises:
        InvalidInputError: The source is too deeply nested to be compiled.
    """
    from RestrictedPython.compile import compile_restricted_exec

    policy = CodePolicy(imports=LAST_RESORT_IMPORTS)
    reasons = find_violations(source, policy, exact=True)
    if reasons:
        return Restricted(b"", reasons)
    try:
        tree = ast.parse(source, FILE_NAME)
        _name_last_value(tree)
        compiled = compile_restricted_exec(tree, FILE_NAME)
    except SyntaxError as error:
        return Restricted(b"", (f"line {error.lineno}: {error.msg}",))
    except (RecursionError, MemoryError, ValueError) as error:
        raise InvalidInputError(
            f"the source cannot be compiled: {error}",
            hint="make it shorter or less deeply nested",
        ) from None
    if compiled.errors:
        return Restricted(b"", tuple(_readable(text) for text in compiled.errors))
    return Restricted(marshal.dumps(compiled.code), ())


def _name_last_value(tree: ast.Module) -> None:
    """Bind the last expression to the name that the cell reads its value from."""
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        target = ast.Name("last_value_", ast.Store())
        assignment = ast.Assign([target], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(assignment, last))


def _readable(error: str) -> str:
    line, _, rest = error.partition(":")
    return f"line {line.removeprefix('Line ')}:{rest}"
