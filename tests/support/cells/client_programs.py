"""Programs of this machine, so that they run in cells of any image."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from toolcell.core import PackageError
from toolcell.sandbox import SandboxManager

from ...conftest import missing

SHOWN = "/clients"
"""Where cells have to be shown the folder."""

_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


def collect(folder: Path, *more: str) -> None:
    """Copy curl, git, others and all that they load; skip where they are not."""
    programs = ("curl", "git", *more)
    for name in programs:
        if shutil.which(name) is None:
            missing(f"there is no {name} here")
    helpers = _said("git", "--exec-path").strip()
    for part in ("bin", "lib"):
        (folder / part).mkdir()
    for program in (*programs, f"{helpers}/git-remote-https"):
        _add(folder, Path(shutil.which(program) or ""))
    folder.chmod(0o755)


async def install(manager: SandboxManager, packages: Sequence[str]) -> None:
    """Install packages of PyPI; skip the test where it does not answer."""
    try:
        await manager.install(packages)
    except PackageError as error:
        if error.details["reason"] != "unreachable":
            raise
        missing(str(error))


def _add(folder: Path, program: Path) -> None:
    libraries = [Path(each) for each in _LIBRARY.findall(_said("ldd", str(program)))]
    for path in (program, *libraries):
        shutil.copy(path, folder / "lib" / path.name)
    # The loader of this machine finds its own C library, whatever the image has.
    [loader] = [library.name for library in libraries if library.name.startswith("ld-")]
    lib = f"{SHOWN}/lib"
    starter = folder / "bin" / program.name
    call = f"{lib}/{loader} --library-path {lib} {lib}/{program.name}"
    starter.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
    starter.chmod(0o755)


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
