"""The sandboxes that are measured side by side."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint

_START = """\
import sys
sys.path.append(sys.argv.pop(1))
from worker.main import main
main()
"""
"""Begins a worker, whose other packages come first."""

_NAMESPACES = "namespaces, seccomp, limits; no network"
_CONTAINER = "container with fewer capabilities, our seccomp, limits; no network"
_DOCKER = "container as the engine makes it, with its network"


class Contender(NamedTuple):
    """One kind of sandbox, by one way to use it."""

    name: str
    isolation: str
    """The walls that it has in this measurement."""

    call: str
    """The documented call that is measured."""

    worker: str
    """Its name in `worker/main.py`, and options as JSON after a space."""

    packages: tuple[str, ...] = ()
    """Packages that uv installs for it, into an environment for it alone."""

    @property
    def ours(self) -> bool:
        """True for toolcell."""
        return self.name.startswith("toolcell")

    def command(self, image: str) -> list[str]:
        """Return the command line of its worker.

        Args:
            image: The image of containers.

        Raises:
            ConfigError: It needs uv, which is not installed.
        """
        kind, _, options = self.worker.partition(" ")
        python = [sys.executable]
        if self.packages:
            installs = [
                word for package in self.packages for word in ("--with", package)
            ]
            python = [_uv(), "run", "--isolated", "--no-project", "--python"]
            python += [sys.executable, *installs, "python"]
        folder = str(Path(__file__).parent)
        return [*python, "-P", "-c", _START, folder, kind, image, options or "{}"]


def _uv() -> str:
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    if uv is None:
        raise ConfigError("uv is not installed", hint=install_hint("packages"))
    return uv


CONTENDERS = (
    Contender("toolcell, fresh cell", _NAMESPACES, "`sandbox.run`", "toolcell"),
    Contender(
        "toolcell, cell from a pool",
        _NAMESPACES,
        "`sandbox.run`, `pool=8`",
        'toolcell {"pool": 8}',
    ),
    Contender(
        "toolcell, reused cell",
        f"{_NAMESPACES}; made new between an agent's programs",
        "`sandbox.run`, `programs_per_cell=1000`",
        'toolcell {"programs_per_cell": 1000}',
    ),
    Contender(
        "toolcell, session", _NAMESPACES, "`sandbox.session`", "toolcell_session"
    ),
    Contender(
        "toolcell on Docker, fresh",
        _CONTAINER,
        "`sandbox.run`",
        'toolcell {"backend": "docker"}',
    ),
    Contender(
        "toolcell on Docker, from a pool",
        _CONTAINER,
        "`sandbox.run`, `pool=4`",
        'toolcell {"backend": "docker", "pool": 4}',
    ),
    Contender(
        "toolcell on Docker, session",
        _CONTAINER,
        "`sandbox.session`",
        'toolcell_session {"backend": "docker"}',
    ),
    Contender(
        "bwrap",
        "namespaces, read-only `/usr`; no seccomp, no limits; no network",
        "`bwrap --unshare-all ... python3 -I -c`",
        "bwrap",
    ),
    Contender(
        "docker run", _DOCKER, "`docker run --rm -i IMAGE python3 -I -c`", "docker_run"
    ),
    Contender(
        "docker exec",
        f"{_DOCKER}; all programs share one",
        "`docker exec -i NAME python3 -I -c`",
        "docker_exec",
    ),
    Contender(
        "llm-sandbox, bubblewrap",
        "namespaces by bubblewrap",
        "`SandboxSession`, set-up skipped",
        'llm_sandbox {"backend": "bubblewrap"}',
        ("llm-sandbox",),
    ),
    Contender(
        "llm-sandbox, Docker",
        _DOCKER,
        "`SandboxSession`, set-up skipped",
        'llm_sandbox {"backend": "docker"}',
        ("llm-sandbox[docker]",),
    ),
    Contender(
        "llm-sandbox, interactive",
        _DOCKER,
        "`InteractiveSandboxSession`",
        "llm_sandbox_interactive",
        ("llm-sandbox[docker]",),
    ),
    Contender(
        "smolagents, local executor",
        "none: an interpreter of Python's syntax in the caller's process",
        "`LocalPythonExecutor`",
        "smolagents",
        ("smolagents",),
    ),
    Contender(
        "mcp-run-python",
        "WebAssembly in a process of Deno",
        "`code_sandbox`",
        "mcp_run_python",
        ("mcp-run-python", "deno"),
    ),
    Contender(
        "Jupyter kernel",
        "none: a process of the caller's user",
        "`start_new_async_kernel`",
        "jupyter_kernel",
        ("jupyter-client", "ipykernel"),
    ),
    Contender(
        "pydantic-monty",
        "an interpreter for a part of Python, in a pooled process",
        "`Monty().checkout`",
        "monty",
        ("pydantic-monty",),
    ),
)
