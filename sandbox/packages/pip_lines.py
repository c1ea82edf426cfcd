"""`pip install` in a program's own text, as notebooks have it: the host installs.

Cells have no way to an index, and what programs may install is for `package_rules` to
say. So these lines are read before the run, and in it they print what came of them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable, Sequence

from toolcell.core import InvalidInputError, PackageError, SandboxUnavailableError

from ..cell.notebook.cells import installs
from ..cell.wire.contract import CELL_END, INSTALLED
from ..client.types import Program

_MEANINGLESS = frozenset(
    "-q -qq -qqq --quiet -U --upgrade -v --verbose --user -y --no-cache-dir --no-input "
    "--disable-pip-version-check --break-system-packages --no-warn-script-location "
    "--prefer-binary --root-user-action=ignore --progress-bar=off".split()
)


async def install_lines(
    program: Program, install: Callable[[Sequence[str]], Awaitable[object]]
) -> Program:
    """Install what a program asks for in lines of `pip install`.

    Args:
        program: The program. An installation that fails is a text that it prints.
        install: Installs packages for this program; raises as `Session.install`.

    Returns:
        The program, which knows what came of each line.
    """
    if program.language != "python" or program.restricted_imports is not None:
        return program
    answers: dict[str, str] = {}
    for cell in program.source.split(CELL_END):
        for line in installs(cell):
            if line not in answers:
                answers[line] = await _install(line, install)
    if not answers:
        return program
    inputs = {**json.loads(program.inputs or b"{}"), INSTALLED: answers}
    return program._replace(inputs=json.dumps(inputs).encode())


async def _install(
    line: str, install: Callable[[Sequence[str]], Awaitable[object]]
) -> str:
    """Install what a line names; return why that failed, or nothing."""
    try:
        words = shlex.split(line)[1:]
    except ValueError as error:
        return f"{line}: {error}"
    options = [word for word in words if word[:1] == "-" and word not in _MEANINGLESS]
    if options:
        return f"pip's option {options[0]} is not known here; name packages alone"
    names = [word for word in words if word[:1] != "-"]
    try:
        await install(names)
    except (InvalidInputError, PackageError, SandboxUnavailableError) as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return ""
