"""Finds a program's language, and takes the code out of notebooks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from toolcell.core import InvalidInputError
from toolcell.sandbox import notebook_program

_BY_SUFFIX = {
    ".py": "python",
    ".sh": "bash",
    ".bash": "bash",
    **dict.fromkeys((".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"), "node"),
}
_BY_INTERPRETER = {"python": "python", "bash": "bash", "sh": "bash", "node": "node"}
_SHEBANG = re.compile(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(?:\S*/)?([A-Za-z]+)")
_NOTEBOOK = ".ipynb"


def program_of(file: str, text: str, language: str | None) -> tuple[str, str]:
    """Return the code in a file's text, and its language.

    Raises:
        InvalidInputError: The language is not known, or the notebook is not Python.
    """
    if language is not None:
        return text, language
    suffix = Path(file).suffix.lower()
    if suffix == _NOTEBOOK:
        return _code_of(file, text), "python"
    if file == "-":
        return text, "python"
    shebang = _SHEBANG.match(text)
    known = _BY_SUFFIX.get(suffix)
    if known is None and not suffix and shebang:
        known = _BY_INTERPRETER.get(shebang[1].lower())
    if known is None:
        raise InvalidInputError(
            f"{os.path.basename(file)} does not say that it is Python, bash, "
            "JavaScript or TypeScript",
            hint="pass --language python, bash or node to run it as that",
        )
    return text, known


def _code_of(file: str, text: str) -> str:
    """Return the code cells of a notebook as one program."""
    try:
        notebook = json.loads(text)
        about = notebook.get("metadata", {})
        named = about.get("language_info", {}).get("name", "python")
        language = about.get("kernelspec", {}).get("language", named)
        cells = [_source(cell) for cell in notebook["cells"] if _is_code(cell)]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise InvalidInputError(
            f"{file} is not a notebook of version 4",
            hint="save it as nbformat 4, or export it as a .py file",
        ) from None
    if language != "python":
        raise InvalidInputError(
            f"{file} is a notebook in {language}, not in Python",
            hint="export its code to a file in that language",
        )
    return notebook_program(cells)


def _is_code(cell: Any) -> bool:
    return bool(cell["cell_type"] == "code")


def _source(cell: Any) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)
