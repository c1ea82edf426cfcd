"""Other sandboxes for Python, each by the shortest way that its documents show.

Written for llm-sandbox 0.3.46, smolagents 1.26 and pydantic-monty 1.4.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from harness.measure import Contender, Missing, WrongResult

_HELLO = "print(1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One sandbox, ready to run print(1)."""

    contender: Contender
    container: bool = False
    """Whether its walls are a container's, so that ours is one too."""


PeerMaker = Callable[[str], AbstractContextManager[Peer]]


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Missing(f"{package} is not installed") from None


def _contender(name: str, run: Callable[[], str], burst: int = 10) -> Contender:
    async def checked() -> None:
        if run().strip() != "1":
            raise WrongResult(f"{name} did not print 1")

    return Contender(name=name, run=checked, burst=burst)


def _llm_sandbox(name: str, burst: int, options: dict[str, Any]) -> Contender:
    module = _load("llm_sandbox", "llm-sandbox")
    backend = module.SandboxBackend(options.pop("backend"))

    def run() -> str:
        with module.SandboxSession(
            backend=backend, lang="python", **options
        ) as session:
            output: str = session.run(_HELLO).stdout
        return output

    return _contender(name, run, burst)


@contextmanager
def llm_sandbox_bubblewrap(_: str) -> Iterator[Peer]:
    """llm-sandbox, a bubblewrap session for each program; its set-up is left out."""
    options = {"backend": "bubblewrap", "skip_environment_setup": True}
    yield Peer(contender=_llm_sandbox("llm-sandbox bubblewrap", 10, options))


@contextmanager
def llm_sandbox_docker(image: str) -> Iterator[Peer]:
    """llm-sandbox, a container for each program; its set-up (pip) is left out.

    The image needs its own command, and `python` beside `python3`.
    """
    options = {
        "backend": "docker",
        "image": image,
        "keep_template": True,
        "skip_environment_setup": True,
    }
    contender = _llm_sandbox("llm-sandbox docker", 1, options)
    yield Peer(contender=contender, container=True)


@contextmanager
def smolagents(_: str) -> Iterator[Peer]:
    """smolagents' interpreter in this process: no isolation."""
    module = _load("smolagents", "smolagents")

    def run() -> str:
        executor = module.LocalPythonExecutor(additional_authorized_imports=[])
        executor.send_tools({})
        return str(executor(_HELLO).logs)

    yield Peer(contender=_contender("smolagents local (no isolation)", run))


@contextmanager
def monty(_: str) -> Iterator[Peer]:
    """pydantic-monty: a new session of its own interpreter in a pooled worker."""
    module = _load("pydantic_monty", "pydantic-monty")
    with module.Monty() as pool:

        def run() -> str:
            output: list[str] = []
            with pool.checkout() as session:
                session.feed_run(
                    _HELLO, print_callback=lambda stream, text: output.append(text)
                )
            return "".join(output)

        yield Peer(contender=_contender("pydantic-monty, pooled worker", run))


PEERS: dict[str, PeerMaker] = {
    "llm-sandbox-bubblewrap": llm_sandbox_bubblewrap,
    "llm-sandbox-docker": llm_sandbox_docker,
    "smolagents": smolagents,
    "pydantic-monty": monty,
}
