"""Writes the stubs that lead type checkers from `toolcell.X` to `./X`.

.venv/bin/python typings/generate.py

There is one for the public face of each room, which is committed, and one for each
other module that rooms, tests and benchmarks import, which mypy needs and git ignores.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ROOMS = ("core", "sandbox", "cluster", "guard", "tools", "flow", "host")
FACES = (*ROOMS, "sandbox.backend_api", "tools.builtin")
SPI = tuple(f"{path.parent.name}.spi" for path in sorted(ROOT.glob("*/spi.py")))
READERS = (*ROOMS, "tests", "benchmarks", "examples")
LAZY = {"host": {"host.runtime.host": "Host", "host.config.host_config": "HostConfig"}}
"""What a face loads when it is asked for: no checker sees it there."""


def stubs() -> dict[str, str]:
    """Return the text of each stub by its path below this folder."""
    found = {}
    for module in sorted(_with_parents({*FACES, *SPI, *_imported()})):
        found[path_of(module)] = _text(module)
    return found


def path_of(module: str) -> str:
    """Return the path of a module's stub below this folder."""
    source = ROOT.joinpath(*module.split("."))
    end = "/__init__.pyi" if source.is_dir() else ".pyi"
    return f"toolcell/{module.replace('.', '/')}{end}"


def _text(module: str) -> str:
    lines = [f"from {module} import *"]
    lines += [
        f"from {home} import {name} as {name}"
        for home, name in sorted(LAZY.get(module, {}).items())
    ]
    return "\n".join(["# Written by typings/generate.py.", *lines, ""])


def _with_parents(modules: set[str]) -> set[str]:
    parts = [module.split(".") for module in modules]
    return {".".join(part[:n]) for part in parts for n in range(1, len(part) + 1)}


def _imported() -> set[str]:
    """Return the modules, without `toolcell.`, that tests and benchmarks import."""
    found = set()
    for folder in READERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(node.module or "")
                    found |= {f"{node.module}.{alias.name}" for alias in node.names}
    inside = {
        name.removeprefix("toolcell.") for name in found if name.startswith("toolcell.")
    }
    return {name for name in inside if _is_module(name)}


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def main() -> None:
    """Write what is wanted, and remove what is not."""
    wanted = stubs()
    for path in (HERE / "toolcell").rglob("*.pyi"):
        if str(path.relative_to(HERE)) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = HERE / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
